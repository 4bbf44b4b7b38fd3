"""A progress bar for what takes seconds, on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

__all__ = ["progress_bar"]

_WIDTH = 32


@contextmanager
def progress_bar(what: str, out: TextIO | None = None) -> Iterator[Callable[[float], None]]:
    """A function that takes the share done, from 0 to 1, and draws it on standard error while inside."""
    stream = out or sys.stderr
    if not stream.isatty():
        yield lambda share: None
        return

    def draw(share: float) -> None:
        full = round(_WIDTH * min(1.0, max(0.0, share)))
        stream.write(f"\r{what} [{'#' * full}{'.' * (_WIDTH - full)}] {share:4.0%}")
        stream.flush()

    draw(0.0)
    try:
        yield draw
    finally:
        stream.write("\r" + " " * (len(what) + _WIDTH + 8) + "\r")
        stream.flush()
