"""Axes: where a chart's ticks stand and what share of its length a size takes."""

from __future__ import annotations

import math

from trainmem.units import GIB

__all__ = ["axis_end_bytes", "share", "tick_bytes"]


def tick_bytes(most_bytes: int, *, ticks: int = 6) -> list[int]:
    """Round sizes from 0 up to ``most_bytes``, at most ``ticks`` steps apart: 1, 2 or 5 times a power of ten
    GiB.
    """
    if most_bytes <= 0:
        return [0]
    least_step = most_bytes / GIB / ticks
    power = 10.0 ** math.floor(math.log10(least_step))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least_step * (1 - 1e-9))
    return [round(step * i * GIB) for i in range(math.floor(most_bytes / GIB / step + 1e-9) + 1)]


def axis_end_bytes(*sizes_bytes: int, headroom: float = 0.04) -> int:
    """Where an axis that shows all of ``sizes_bytes`` ends: a little beyond the largest."""
    return max(1, math.ceil(max(sizes_bytes, default=0) * (1 + headroom)))


def share(part_bytes: int, whole_bytes: int) -> float:
    """``part_bytes`` as a fraction of ``whole_bytes``, 0 for an empty whole."""
    return part_bytes / whole_bytes if whole_bytes > 0 else 0.0
