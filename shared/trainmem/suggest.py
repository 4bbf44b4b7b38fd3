"""What someone may have meant by a name that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["close_matches"]

_LONGEST = 200


def close_matches(name: str, known: Iterable[str]) -> list[str]:
    """Up to four of ``known`` that look like ``name``, best first; an id also matches without its owner."""
    known = list(known)
    # difflib is quadratic in the length, and no known name is near this long.
    wanted = name.strip().casefold()[:_LONGEST]
    for candidate in dict.fromkeys((wanted, wanted.rpartition("/")[2])):
        found = difflib.get_close_matches(candidate, known, n=4, cutoff=0.55)
        if found:
            return found
    return []
