"""How large a model fits, method by method: one row each on a shared logarithmic axis of parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from trainmem.fit.words import billions
from trainmem_space.charts.text import percent

__all__ = ["FrontierRow", "Mark", "frontier"]

_FIRST, _LAST = 10**8, 6 * 10**11

_TICKS = tuple(base * 10**power for power in (8, 9, 10, 11) for base in (1, 3))


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """A real model on a row: filled where it was measured, hollow where it is predicted."""

    parameters: int
    title: str
    fits: bool
    measured: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class FrontierRow:
    """One method. ``end`` is the largest size that fits, 0 for none; ``about`` is HTML that the row opens to.

    ``label`` is HTML that stands outside the track, where it covers no mark at any width. ``thumb`` are the least
    and the most parameters that a rule of thumb names.
    """

    key: str
    title: str
    end: int
    ends_with_the_family: bool
    label: str
    marks: Sequence[Mark]
    thumb: tuple[float, float] | None
    about: str


def frontier(rows: Sequence[FrontierRow], named: Mapping[str, int]) -> str:
    """The figure; the stepped line through the rows' ends is the frontier. ``named`` are sizes told on top."""
    before = [0, *(row.end for row in rows)]
    drawn = "".join(_row(row, above) for row, above in zip(rows, before, strict=False))
    ticks = "".join(
        f'<span style="left:{percent(_share(at))}">{billions(at)}</span>' for at in _TICKS if at < _LAST
    )
    names = "".join(
        f'<span style="left:{percent(_share(size))}">{escape(name)}</span>' for name, size in named.items()
    )
    return (
        '<div class="tm-frontier" role="group" aria-label="the largest model that fits, by method">'
        f'<div class="tm-frontier-axis names" aria-hidden="true"><span></span><div>{names}</div></div>{drawn}'
        f'<div class="tm-frontier-axis" aria-hidden="true"><span></span><div>{ticks}</div></div></div>'
    )


def _share(parameters: float) -> float:
    """Where a size stands on the axis, 0 to 1."""
    if parameters <= _FIRST:
        return 0.0
    return min(1.0, math.log(parameters / _FIRST) / math.log(_LAST / _FIRST))


def _row(row: FrontierRow, above: int) -> str:
    at, up = _share(row.end), _share(above)
    low, high = min(at, up), max(at, up)
    parts = [f'<i class="fill" style="width:{percent(at)}"></i>']
    if above:
        parts.append(f'<i class="tread" style="left:{percent(low)};width:{percent(high - low)}"></i>')
    if row.end:
        kind = "riser open" if row.ends_with_the_family else "riser"
        parts.append(f'<i class="{kind}" style="left:{percent(at)}"></i>')
    # What was measured lies on top of a prediction beside it.
    parts += [_mark(mark) for mark in sorted(row.marks, key=lambda mark: mark.measured)]
    if row.thumb is not None:
        start, end = (_share(size) for size in row.thumb)
        # A rule that names one size is still wide enough to be seen.
        parts.append(
            f'<i class="thumb" style="left:{percent(start)};width:max(5px, {percent(end - start)})"></i>'
        )
    return (
        f'<details data-key="{row.key}"><summary><span class="method">{escape(row.title)}</span>'
        f'<span class="track">{"".join(parts)}</span><em class="size">{row.label}</em></summary>'
        f'<div class="about">{row.about}</div></details>'
    )


def _mark(mark: Mark) -> str:
    kind = " ".join(["mark", "measured" if mark.measured else "predicted", "fits" if mark.fits else "short"])
    return (
        f'<b class="{kind}" style="left:{percent(_share(mark.parameters))}" title="{escape(mark.title)}"></b>'
    )
