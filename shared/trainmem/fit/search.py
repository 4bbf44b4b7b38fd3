"""The largest number that fits, with few questions to the one who knows exactly."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["largest", "largest_from"]


def largest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest n in 1..``most`` with ``fits(n)``, 0 where not even 1 does; what fits must fit with less."""
    if most < 1 or not fits(1):
        return 0
    low, high = 1, 2
    while high <= most and fits(high):
        low, high = high, high * 2
    if high > most:
        if fits(most):
            return most
        high = most
    return _between(low, high, fits)


def largest_from(guess: int, most: int, fits: Callable[[int], bool], *, stride: int = 1) -> int:
    """The same near ``guess``: steps of ``stride``, doubled until the border is between two, then bisection.

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
