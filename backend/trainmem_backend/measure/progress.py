"""How far a run is: a line for every row, and a bar where there is a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from trainmem.units import format_gib

__all__ = ["Progress", "row_line"]


def _size(size_bytes: Any) -> str:
    return format_gib(size_bytes) if isinstance(size_bytes, int) else "-"


def row_line(row: dict[str, Any], predicted_bytes: int | None, seconds: float) -> str:
    """``lesson/baseline: predicted 44.4 GiB, measured 44.4 GiB, 7.1 s``, or how it ended otherwise."""
    name = f"{row.get('suite')}/{row.get('label')}"
    measured = row.get("measured") or {}
    if row["outcome"] == "oom":
        # torch goes on about the card and its settings for five lines more; the row has them.
        return f"{name}: oom: {str(row.get('reason')).partition(' GPU ')[0]}"
    if row["outcome"] != "ok":
        return f"{name}: {row['outcome']}: {row.get('reason')}"
    if row.get("kind") == "largest_batch":
        proved = "" if measured["proved"] else " (not proved)"
        return f"{name}: {measured['largest_micro_batch']}{proved}, {len(measured['trials'])} trials"
    if row.get("kind", "step") != "step":
        return f"{name}: ok, {seconds:.1f} s"
    peak = measured.get("peak_allocated_bytes")
    error = f" ({predicted_bytes / peak - 1:+.2%})" if predicted_bytes and isinstance(peak, int) else ""
    return f"{name}: predicted {_size(predicted_bytes)}{error}, measured {_size(peak)}, {seconds:.1f} s"


class Progress:
    """Counts trials and says what is left. On a terminal a bar; elsewhere one line a row."""

    def __init__(
        self, total: int, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._out = out or sys.stderr
        self._total = total
        self._done = 0
        self._clock = clock
        # The first worker's imports say nothing of how long the trials take.
        self._began: float | None = None
        self._bar = _bar(total) if self._out.isatty() else None
        self._task = self._bar.add_task("starting", total=total) if self._bar is not None else None
        if self._bar is not None:
            self._bar.start()

    def begin(self, name: str, predicted_bytes: int | None) -> None:
        """A trial starts."""
        if self._began is None:
            self._began = self._clock()
        if self._bar is not None:
            self._bar.update(self._task, description=f"{name}, predicted {_size(predicted_bytes)}")

    def row(self, row: dict[str, Any], predicted_bytes: int | None, seconds: float) -> None:
        """A row was written."""
        self._say(row_line(row, predicted_bytes, seconds))

    def end(self) -> None:
        """A trial is done, with all its rows."""
        self._done += 1
        if self._bar is not None:
            self._bar.advance(self._task)

    def left(self) -> str:
        """``4 of 38, about 2.1 min left``: the trial that is at work, and what the others took so far."""
        at_work = min(self._done + 1, self._total)
        if not self._done or self._began is None:
            return f"{at_work} of {self._total}"
        each = (self._clock() - self._began) / self._done
        return f"{at_work} of {self._total}, about {each * (self._total - self._done) / 60:.1f} min left"

    def note(self, text: str) -> None:
        """Something a reader must know."""
        self._say(text)

    def close(self) -> None:
        """Take the bar down."""
        if self._bar is not None:
            self._bar.stop()

    def _say(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False)
        else:
            print(f"[{self.left()}] {text}", file=self._out, flush=True)


def _bar(total: int) -> Any:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar
    except ImportError:
        return None
    return Bar(
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
        console=Console(stderr=True),
    )
