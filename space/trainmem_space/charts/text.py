"""Text and sizes as safe HTML."""

from __future__ import annotations

import re
from html import escape

from trainmem.units import GIB, MIB, format_bytes, format_gib

__all__ = ["cell", "escape", "percent", "prose", "size", "tick", "words"]


_CODE = re.compile(r"`([^`]+)`")
_SMALL_BYTES = 10 * MIB
_LEAST_IN_A_COLUMN = GIB // 1000


def size(size_bytes: int | None) -> str:
    """A size in GiB with three significant digits, the exact bytes on hover; a dash where there is none.

    What would be all zeros in GiB is given in MiB or KiB.
    """
    if size_bytes is None:
        return '<span class="tm-num">–</span>'
    small = 0 < size_bytes < _SMALL_BYTES
    text = format_bytes(size_bytes) if small else format_gib(size_bytes)
    return f'<span class="tm-num" title="{size_bytes:,} bytes">{text}</span>'


def cell(size_bytes: int | None) -> str:
    """`size` for a column of GiB, where every figure has that unit: ``"<0.001 GiB"`` for what is smaller."""
    if not size_bytes or size_bytes >= GIB // 10:
        return size(size_bytes)
    small = size_bytes < _LEAST_IN_A_COLUMN
    text = "<0.001 GiB" if small else f"{format_gib(size_bytes, digits=2 if size_bytes >= GIB // 100 else 1)}"
    return f'<span class="tm-num" title="{size_bytes:,} bytes">{escape(text)}</span>'


def tick(size_bytes: int) -> str:
    """A round size on an axis, in GiB without the unit."""
    number = format_gib(size_bytes).removesuffix(" GiB")
    return number.rstrip("0").rstrip(".") if "." in number else number


def percent(fraction: float) -> str:
    """A share of an axis as CSS writes it."""
    return f"{fraction:.3%}"


def prose(text: str) -> str:
    """A sentence of trainmem's as HTML: what stands between backticks is code."""
    return _CODE.sub(r"<code>\1</code>", escape(text))


def words(name: str) -> str:
    """``optimizer_state`` as a reader sees it: ``optimizer state``."""
    return escape(name.replace("_", " "))
