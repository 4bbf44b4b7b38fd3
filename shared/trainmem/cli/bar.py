"""A progress bar for what takes seconds, on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO, cast

__all__ = ["progress_bar"]

_WIDTH = 32


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[float], None]]:
    """A function that takes the share done, from 0 to 1, and draws it on standard error while inside.

    What else is printed to the terminal meanwhile, as by a script that is traced, stands on lines of its own.
    """
    if not sys.stderr.isatty():
        yield lambda share: None
        return
    bar = _Bar(what, sys.stderr)
    with ExitStack() as stack:
        if sys.stdout.isatty():
            stack.enter_context(redirect_stdout(cast(TextIO, _Beside(bar, sys.stdout))))
        stack.enter_context(redirect_stderr(cast(TextIO, _Beside(bar, sys.stderr))))
        stack.callback(bar.clear)
        bar.draw(0.0)
        yield bar.draw


class _Bar:
    def __init__(self, what: str, stream: TextIO) -> None:
        self.what, self.stream = what, stream
        self.line_is_free = True
        self._drawn = False

    def draw(self, share: float) -> None:
        """Nothing while somebody's unfinished line is there: going back to its start would write over it."""
        if not self.line_is_free:
            return
        full = round(_WIDTH * min(1.0, max(0.0, share)))
        self.stream.write(f"\r{self.what} [{'#' * full}{'.' * (_WIDTH - full)}] {share:4.0%}")
        self.stream.flush()
        self._drawn = True

    def clear(self) -> None:
        if self._drawn:
            self.stream.write("\r" + " " * (len(self.what) + _WIDTH + 8) + "\r")
            self.stream.flush()
            self._drawn = False


class _Beside:
    """A stream to the bar's terminal: before it writes, the bar goes."""

    def __init__(self, bar: _Bar, stream: TextIO) -> None:
        self._bar, self._stream = bar, stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        if not text:
            return 0
        self._bar.clear()
        self._bar.line_is_free = text.endswith("\n")
        return self._stream.write(text)
