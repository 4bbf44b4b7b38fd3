"""A small chart as data, for a page or a terminal to draw."""

from __future__ import annotations

from dataclasses import dataclass

from trainmem.buckets import Bucket
from trainmem.scale import axis_end_bytes, tick_bytes
from trainmem.units import GIB

__all__ = ["Chart", "Limit", "Ribbon", "Series"]


@dataclass(frozen=True, slots=True)
class Series:
    """One layer of the stack, in GiB at each x; ``bucket`` decides its colour, None where that would tell."""

    name: str
    bucket: Bucket | None
    values_gib: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Ribbon:
    """A named stretch of the x axis, such as a phase; an empty name is a question."""

    name: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Limit:
    """A horizontal line with its label."""

    value_gib: float
    label: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """Stacked layers over x. ``alt`` describes it to someone who cannot see it, without the answer."""

    title: str
    x: tuple[float, ...]
    series: tuple[Series, ...]
    alt: str
    ribbons: tuple[Ribbon, ...] = ()
    limit: Limit | None = None
    x_labels: tuple[tuple[float, str], ...] = ()

    def __post_init__(self) -> None:
        for series in self.series:
            if len(series.values_gib) != len(self.x):
                raise ValueError(f"series {series.name}: {len(series.values_gib)} values for {len(self.x)} x")

    @property
    def totals_gib(self) -> tuple[float, ...]:
        """The height of the stack at each x."""
        return tuple(sum(column) for column in zip(*(s.values_gib for s in self.series), strict=True))

    @property
    def axis_gib(self) -> tuple[float, tuple[float, ...]]:
        """Where the vertical axis ends, and its round ticks."""
        tops = [*self.totals_gib, self.limit.value_gib if self.limit else 0.0]
        end = axis_end_bytes(*(round(top * GIB) for top in tops), headroom=0.1)
        return end / GIB, tuple(tick / GIB for tick in tick_bytes(end, ticks=4))

    def x_share(self, x: float) -> float:
        """Where ``x`` lies between the axis' ends, 0 to 1."""
        return (x - self.x[0]) / ((self.x[-1] - self.x[0]) or 1.0)
