"""Workers kept ready: while one trial runs, the next one's imports are under way."""

from __future__ import annotations

import threading
from collections.abc import Callable

from trainmem_backend.measure.process import WorkerProcess

__all__ = ["Bench", "WorkerGone"]

_IMPORT_SECONDS = 300.0


class WorkerGone(RuntimeError):
    """A worker that ended before it was ready; the message is its last words."""


class Bench:
    """Hands out workers that have finished their imports, and starts the next ones.

    ``ready`` workers wait beside those at work: one is enough for trials in a row, more for trials
    beside each other.
    """

    def __init__(self, start: Callable[[], WorkerProcess], *, ready: int, total: int) -> None:
        self._start = start
        self._ready = ready
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

    def take(self) -> WorkerProcess:
        """A worker that is ready. Raises `WorkerGone` with its last words where it failed to start."""
        with self._lock:
            worker = self._waiting.pop(0) if self._waiting else self._start()
            self._fill()
        try:
            message = worker.receive(_IMPORT_SECONDS)
        except TimeoutError:
            message = None
        if message is None or message.get("event") != "ready":
            code = worker.end(patience_seconds=0.5)
            words = worker.last_words().strip()[-600:]
            worker.close()
            raise WorkerGone(f"a worker did not start (exit {code}): {words}")
        return worker

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
