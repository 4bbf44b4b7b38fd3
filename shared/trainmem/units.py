"""Bytes and how people read them.

Inside trainmem every size is an ``int`` of bytes. On a screen it is GiB (2^30), with GB (10^9) beside it where
a product is sold in GB.
"""

from __future__ import annotations

import math
import re

__all__ = ["GB", "GIB", "KIB", "MIB", "format_bytes", "format_gb", "format_gib", "parse_bytes"]

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
_SIZE = re.compile(r"^\s*([0-9][0-9_,]*(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)\s*([a-z]*)\s*$", re.IGNORECASE)


def parse_bytes(text: str | int | float, *, field: str = "size") -> int:
    """Bytes from ``"24GiB"``, ``"80 GB"``, ``"19.8e9"`` or a number of bytes.

    Raises ``ValueError`` naming ``field`` when the text is not a finite, non-negative size in a known unit.
    """
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise ValueError(f"{field}: {text!r} is not a size; write bytes or a unit, for example 24GiB or 80GB")
    match = _SIZE.match(str(text))
    if match is None or match[2].upper() not in _UNITS:
        raise ValueError(
            f"{field}: {text!r} is not a size; write a number with B, KiB, MiB, GiB, TiB, kB, MB, GB or TB"
        )
    value = float(match[1].replace(",", "").replace("_", "")) * _UNITS[match[2].upper()]
    if not math.isfinite(value):
        raise ValueError(f"{field}: {text!r} is not a finite size")
    return round(value)


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
