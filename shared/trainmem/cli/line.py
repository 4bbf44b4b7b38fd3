"""What went wrong, as one line that any terminal shows."""

from __future__ import annotations

import re

__all__ = ["one_line"]

_LONGEST_WORD = 120
_LONG = re.compile(rf"\S{{{_LONGEST_WORD + 1},}}")


def one_line(text: object) -> str:
    """``text`` without line ends and control characters, no word longer than 120 characters: a value that was
    given whole would bury what is said about it.
    """
    line = " ".join(str(text).split())
    line = _LONG.sub(lambda word: f"{word[0][: _LONGEST_WORD - 3]}...", line)
    return "".join(c if c.isprintable() else "?" for c in line)
