"""Workers kept ready: while one trial runs, the next one's imports are under way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from trainmem_backend.measure.process import WorkerProcess

__all__ = ["Bench", "WorkerGone"]

_IMPORT_SECONDS = 300.0
_SHORT_WAIT_SECONDS = 1.0


class WorkerGone(RuntimeError):
    """A worker that ended before it was ready; the message is its last words."""


class Bench:
    """Hands out workers that have finished their imports, and starts the next ones.

    ``ready`` workers wait beside those at work. Where one was taken before it was ready, twice as many are
    kept from then on, up to ``most``: on a cold disk an import lasts as long as eight short trials.
    """

    def __init__(
        self, start: Callable[[], WorkerProcess], *, ready: int, total: int, most: int | None = None
    ) -> None:
        self._start = start
        self._ready = ready
        self._most = ready if most is None else most
        self._left = total
        self._waiting: list[WorkerProcess] = []
        self._lock = threading.Lock()
        self._fill()

    def _fill(self) -> None:
        while len(self._waiting) < self._ready and self._left > 0:
            self._left -= 1
            self._waiting.append(self._start())

    def expect(self, more: int) -> None:
        """So many more workers will be taken than was said at first."""
        with self._lock:
            self._left += more
            self._fill()

    def keep_at_most(self, most: int) -> None:
        """Keep fewer from now on; those that wait already are still handed out."""
        with self._lock:
            self._most = most
            self._ready = min(self._ready, most)

    def take(self) -> WorkerProcess:
        """A worker that is ready. Raises `WorkerGone` with its last words where it failed to start."""
        with self._lock:
            worker = self._waiting.pop(0) if self._waiting else self._start()
            self._fill()
        try:
            message = worker.receive(_SHORT_WAIT_SECONDS)
        except TimeoutError:
            with self._lock:
                self._ready = min(2 * self._ready, self._most)
                self._fill()
            message = self._patiently(worker)
        if message is None or message.get("event") != "ready":
            code = worker.end(patience_seconds=0.5)
            words = worker.last_words().strip()[-600:]
            worker.close()
            raise WorkerGone(f"a worker did not start (exit {code}): {words}")
        return worker

    def _patiently(self, worker: WorkerProcess) -> dict[str, Any] | None:
        try:
            return worker.receive(_IMPORT_SECONDS)
        except TimeoutError:
            return None

    def pause(self) -> None:
        """Hold the workers that import: they would take the processor from a step that is being timed."""
        with self._lock:
            for worker in self._waiting:
                worker.pause()

    def resume(self) -> None:
        """Let them go on."""
        with self._lock:
            for worker in self._waiting:
                worker.resume()

    def close(self) -> None:
        """End the workers that wait."""
        with self._lock:
            self._left = 0
            for worker in self._waiting:
                worker.kill()
                worker.end(patience_seconds=0.5)
                worker.close()
            self._waiting.clear()
