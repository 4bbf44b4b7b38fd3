"""A worker process seen from the parent: messages in and out, its last words, its end."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["WORKER_COMMAND", "WorkerProcess"]

WORKER_COMMAND = (sys.executable, "-m", "trainmem_backend.measure.worker")

_LAST_WORDS_BYTES = 4000


class WorkerProcess:
    """Starts ``command`` at once, so that its imports run while another trial is being measured.

    The process leads a group of its own: Ctrl-C in the terminal reaches only the parent, and killing the
    group takes along whatever the trial started (compilers, ranks).
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        read, write = os.pipe()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                [*command, "--results", str(write)],
                stdin=subprocess.PIPE,
                stdout=self._stderr,
                stderr=self._stderr,
                env=dict(environment),
                pass_fds=(write,),
                start_new_session=True,
            )
        finally:
            os.close(write)
        self._messages: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, args=(read,), daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Of the process, and of its group."""
        return self._process.pid

    def _read(self, descriptor: int) -> None:
        with os.fdopen(descriptor, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                # A process killed in the middle of a message leaves half a line.
                with contextlib.suppress(ValueError):
                    self._messages.put(json.loads(line))
        self._messages.put(None)

    def send(self, **message: Any) -> None:
        """A message to the worker; one that is gone is noticed when it does not answer."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def receive(self, timeout_seconds: float) -> dict[str, Any] | None:
        """The next message; None when the worker is gone. Raises `TimeoutError`."""
        try:
            return self._messages.get(timeout=timeout_seconds)
        except queue.Empty:
            raise TimeoutError from None

    def last_words(self) -> str:
        """The end of what it printed."""
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - _LAST_WORDS_BYTES))
        return self._stderr.read().decode(errors="replace")

    def end(self, *, patience_seconds: float = 2.0) -> int:
        """Wait a moment for the process to end by itself, then kill its group; its exit code."""
        try:
            self._process.wait(patience_seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()
        # Ranks or compilers may outlive the leader and keep memory.
        self.kill()
        self._reader.join(5)
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        return self._process.returncode

    def close(self) -> None:
        """Forget the process after `end`."""
        self._stderr.close()

    def pause(self) -> None:
        """Stop the group where it is, until `resume`."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let the group run on."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End the whole group now."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
