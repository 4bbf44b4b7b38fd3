"""Single values and whole columns of them, checked by exact type."""

from __future__ import annotations

from array import array
from operator import itemgetter
from typing import Any

from .refusal import Refusal

__all__ = ["column", "integer", "integers", "objects"]

_END = 1 << 64
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


def column(rows: list[dict[str, Any]], key: str, default: Any = None) -> list[Any]:
    """One key of every row."""
    try:
        return list(map(itemgetter(key), rows))
    except KeyError:
        return [row.get(key, default) for row in rows]


def integers(values: list[Any], what: str, default: int | None = None) -> array[int]:
    """A column of integers from 0 to 2^64 - 1. ``default`` stands for missing ones; ``None`` refuses them."""
    if set(map(type, values)) <= {int}:
        try:
            return array("Q", values)
        except OverflowError:
            raise Refusal(f"{what}: below 0 or not below 2^64") from None
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
