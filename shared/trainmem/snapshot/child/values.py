"""Single values and whole columns of them, checked by exact type."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

from .refusal import Refusal

__all__ = ["integer", "integers", "objects", "pieces"]

_END = 1 << 64
_ROWS_AT_ONCE = 1000
_MISSING = object()


def objects(value: Any, what: str) -> list[dict[str, Any]]:
    """A list of dictionaries; missing counts as empty."""
    if value is None:
        return []
    if type(value) is tuple:
        value = list(value)
    if type(value) is not list or not set(map(type, value)) <= {dict}:
        raise Refusal(f"{what}: not a list of objects")
    return value


def pieces(rows: list[dict[str, Any]], keys: tuple[str, ...]) -> Iterator[list[tuple[Any, ...]]]:
    """Several keys of every row, missing ones as None: one tuple a key, a thousand rows at a time.

    So each row is visited once, while it is in the processor's cache, and no column is ever whole.
    """
    get = itemgetter(*keys)
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        part = rows[start : start + _ROWS_AT_ONCE]
        try:
            yield list(zip(*map(get, part), strict=True))
        except KeyError:
            yield list(zip(*([row.get(key) for key in keys] for row in part), strict=True))


def integers(values: Sequence[Any], what: str, default: int | None = None) -> array[int]:
    """A column of integers from 0 to 2^64 - 1. ``default`` stands for missing ones; ``None`` refuses them."""
    try:
        # Takes nothing but integers, true and false, which are 1 and 0, among them.
        return array("Q", values)
    except OverflowError:
        raise Refusal(f"{what}: below 0 or not below 2^64") from None
    except TypeError:
        return array("Q", [integer(value, what, default) for value in values])


def integer(value: Any, what: str, default: int | None = None) -> int:
    """One such integer. JSON writers also send whole floats, and decimal or hexadecimal strings."""
    number: Any = _MISSING
    if value is None and default is not None:
        return default
    if type(value) is int:
        number = value
    elif type(value) is float and value.is_integer():
        number = int(value)
    elif type(value) is str and len(value) <= 20:
        try:
            number = int(value, 0)
        except ValueError:
            number = _MISSING
    if number is _MISSING:
        raise Refusal(f"{what}: not a whole number")
    if not 0 <= number < _END:
        raise Refusal(f"{what}: below 0 or not below 2^64")
    return int(number)
