"""Text and sizes as safe HTML."""

from __future__ import annotations

from html import escape

from trainmem.units import format_gib

__all__ = ["escape", "percent", "size", "tick", "words"]


def size(size_bytes: int | None) -> str:
    """A size in GiB with three significant digits, the exact bytes on hover; a dash where there is none."""
    if size_bytes is None:
        return '<span class="tm-num">–</span>'
    return f'<span class="tm-num" title="{size_bytes:,} bytes">{format_gib(size_bytes)}</span>'


def tick(size_bytes: int) -> str:
    """A round size on an axis, in GiB without the unit."""
    number = format_gib(size_bytes).removesuffix(" GiB")
    return number.rstrip("0").rstrip(".") if "." in number else number


def percent(fraction: float) -> str:
    """A share of an axis as CSS writes it."""
    return f"{fraction:.3%}"


def words(name: str) -> str:
    """``optimizer_state`` as a reader sees it: ``optimizer state``."""
    return escape(name.replace("_", " "))
