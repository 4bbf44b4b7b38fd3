"""Bytes and how people read them.

Inside trainmem every size is an ``int`` of bytes. On a screen it is GiB (2^30), with GB (10^9) beside it where
a product is sold in GB.
"""

from __future__ import annotations

import math
import re

__all__ = [
    "GB",
    "GIB",
    "KIB",
    "MIB",
    "format_bytes",
    "format_gb",
    "format_gib",
    "parse_bytes",
    "parse_number",
]

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
GB = 10**9

_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": KIB,
    "MIB": MIB,
    "GIB": GIB,
    "TIB": 1 << 40,
}
_DIGITS = r"[0-9]+(?:[_,][0-9]+)*(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?"
_NUMBER = re.compile(rf"\s*[+-]?(?:{_DIGITS}|\.[0-9]+)\s*", re.IGNORECASE)
_SIZE = re.compile(rf"\s*({_DIGITS})\s*([a-z]*)\s*", re.IGNORECASE)


def parse_number(text: str) -> float:
    """A number as people write it: ``8``, ``8.0``, ``1e3``, digits set off by single commas or underscores.

    Raises ``ValueError`` for anything else; a number too large for a float is infinite.
    """
    if _NUMBER.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a number")
    return float(text.replace(",", "").replace("_", ""))


def parse_bytes(text: str | int | float, *, field: str = "size") -> int:
    """Bytes from ``"24GiB"``, ``"80 GB"``, ``"19.8e9"`` or a number of bytes.

    Raises ``ValueError`` naming ``field`` when the text is not a finite, non-negative size in a known unit.
    """
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise ValueError(
            f"{field}: {_shown(text)} is not a size; write bytes or a unit, for example 24GiB or 80GB"
        )
    if isinstance(text, int) and text.bit_length() > 1000:  # nor would Python write it out
        raise ValueError(f"{field}: a number of more than three hundred digits is not a size")
    match = _SIZE.fullmatch(str(text))
    if match is None or match[2].upper() not in _UNITS:
        raise ValueError(
            f"{field}: {_shown(text)} is not a size; write a number with B, KiB, MiB, GiB, TiB, kB, MB, GB or TB"
        )
    value = parse_number(match[1]) * _UNITS[match[2].upper()]
    if not math.isfinite(value):
        raise ValueError(f"{field}: {_shown(text)} is not a finite size")
    return round(value)


def _shown(text: object) -> str:
    shown = repr(text)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def format_gib(size_bytes: int, *, digits: int = 3) -> str:
    """``size_bytes`` in GiB to ``digits`` significant digits, for example ``"44.4 GiB"``."""
    gib = size_bytes / GIB
    if gib == 0:
        return "0 GiB"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(gib))))
    return f"{gib:,.{min(decimals, 4)}f} GiB"


def format_gb(size_bytes: int) -> str:
    """A size in whole GB (10^9), as products are sold: ``"128 GB"``."""
    return f"{size_bytes / GB:,.0f} GB"


def format_bytes(size_bytes: int) -> str:
    """A size in the unit that keeps it readable, as PyTorch's out-of-memory line does (two decimals)."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(size_bytes) >= unit:
            return f"{size_bytes / unit:.2f} {name}"
    return f"{size_bytes} bytes"
