"""The largest number that fits, with few questions to the one who knows exactly."""

from __future__ import annotations

import math
from collections.abc import Callable

__all__ = ["largest_from", "largest_within"]

_PATIENCE = 3
"""Questions along a line that may leave more than half of what was open."""


def largest_within(limit: int, most: int, need: Callable[[int], int], *, start: int = 1) -> int:
    """The largest n in 1..``most`` that needs ``limit`` at most, 0 where 1 needs more; more must not need less.

    ``start`` is asked first, then where the line through the last two answers meets the limit, which are few questions
    where the need grows about evenly; and the middle, where that has not halved what is open for a while.
    """
    low, high = 0, most + 1
    number, needed, ask = 0, 0, max(1, min(start, most))
    open_before, patience = high, _PATIENCE
    while high - low > 1:
        last, last_needed = number, needed
        number, needed = ask, need(ask)
        low, high = (number, high) if needed <= limit else (low, number)
        slope = (needed - last_needed) / (number - last)
        patience -= 1
        if 2 * (high - low) <= open_before:
            open_before, patience = high - low, _PATIENCE
        if patience < 0 or slope <= 0:
            ask = (low + high) // 2
        else:
            ask = number + math.floor((limit - needed) / slope)
        ask = max(low + 1, min(ask, high - 1))
    return low


def largest_from(guess: int, most: int, fits: Callable[[int], bool], *, stride: int = 1) -> int:
    """The largest n in 1..``most`` with ``fits(n)``, 0 where there is none, searched for from ``guess``: steps of
    ``stride``, doubled until the border is between two, then bisection.

    The answer fits and its successor does not, even where ``fits`` is not quite monotone.
    """
    guess = max(1, min(guess, most))
    if fits(guess):
        low, step = guess, stride
        while low < most:
            probe = min(most, low + step)
            if not fits(probe):
                return _between(low, probe, fits)
            low, step = probe, step * 2
        return most
    high, step = guess, stride
    while high > 1:
        probe = max(1, high - step)
        if fits(probe):
            return _between(probe, high, fits)
        high, step = probe, step * 2
    return 0


def _between(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """The border, where ``low`` fits and ``high`` does not."""
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
