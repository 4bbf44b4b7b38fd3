"""Axes: where a chart's ticks stand and what share of its length a size takes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from trainmem.units import GIB

__all__ = ["LogAxis", "axis_end_bytes", "share", "tick_bytes"]


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


@dataclass(frozen=True, kw_only=True, slots=True)
class LogAxis:
    """A logarithmic axis from ``low_bytes`` to ``high_bytes``, for sizes that span powers of ten."""

    low_bytes: float
    high_bytes: float

    @classmethod
    def around(cls, sizes_bytes: Iterable[int], *, headroom: float = 0.15) -> LogAxis:
        """An axis that shows all of the sizes, with a little room at both ends."""
        sizes = [size for size in sizes_bytes if size > 0] or [GIB]
        return cls(low_bytes=min(sizes) / (1 + headroom), high_bytes=max(sizes) * (1 + headroom))

    def share(self, size_bytes: int) -> float:
        """Where on the axis a size stands, from 0 to 1."""
        return math.log(size_bytes / self.low_bytes) / math.log(self.high_bytes / self.low_bytes)

    def tick_bytes(self) -> list[int]:
        """1, 2 and 5 times powers of ten GiB that lie on the axis."""
        first, last = (math.floor(math.log10(end / GIB)) for end in (self.low_bytes, self.high_bytes))
        sizes = (10.0**power * factor * GIB for power in range(first, last + 1) for factor in (1, 2, 5))
        return [round(size) for size in sizes if self.low_bytes <= size <= self.high_bytes]
