"""Memory over one step: a stacked area by bucket, with the phases as a ribbon under the axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate, groupby

from trainmem.buckets import BUCKETS, Bucket
from trainmem.scale import axis_end_bytes, share, tick_bytes
from trainmem.units import format_gib
from trainmem_space.charts.bar import CapacityLine
from trainmem_space.charts.text import percent, tick, words

__all__ = ["AreaPoint", "area", "axis_of"]

# The drawing's own grid: whole numbers keep the paths short, and 2,000 steps are finer than any screen here.
_GRID = 2000


@dataclass(frozen=True, kw_only=True, slots=True)
class AreaPoint:
    """One sample: where in the step (0 to 1), in which phase, and what fills the memory."""

    x: float
    phase: str
    buckets_bytes: Mapping[Bucket, int]


def axis_of(points: Sequence[AreaPoint], limit: CapacityLine | None) -> int:
    """Where the upright axis of `area` ends, in bytes."""
    peak = max(sum(point.buckets_bytes.values()) for point in points)
    return axis_end_bytes(peak, limit.at_bytes if _is_near(limit, peak) else 0, headroom=0.12)


def _is_near(limit: CapacityLine | None, peak_bytes: int) -> bool:
    return limit is not None and share(limit.at_bytes, peak_bytes) <= 1.6


def area(
    points: Sequence[AreaPoint], *, peak_label: str, limit: CapacityLine | None = None, height: int = 260
) -> str:
    """The figure. ``limit`` is drawn only where it is near enough not to flatten the rest."""
    totals = [sum(point.buckets_bytes.values()) for point in points]
    peak = max(totals)
    axis = axis_of(points, limit)
    peak_at = points[totals.index(peak)].x
    flip = " flip" if peak_at > 0.6 else ""
    key, line = _limit(limit, axis, peak) if limit and _is_near(limit, peak) else ("", "")
    drawing = f'<svg viewBox="0 0 {_GRID} {_GRID}" preserveAspectRatio="none" aria-hidden="true">'
    at = f'style="left:{percent(peak_at)};bottom:{percent(share(peak, axis))}"'
    return (
        f'<figure class="tm-area" role="img" aria-label="{escape(_said(points, totals, peak_label))}">'
        f'{key}<div class="tm-canvas" style="height:{height}px">{_ticks(axis)}'
        f"{drawing}{_paths(points, axis)}</svg>{line}"
        f'<div class="tm-peak{flip}" {at}><span>{escape(peak_label)}</span></div>'
        '<div class="tm-cursor"></div></div>'
        f'<div class="tm-ribbon" aria-hidden="true">{_ribbon(points)}</div></figure>'
    )


def _paths(points: Sequence[AreaPoint], axis_bytes: int) -> str:
    columns = [
        [
            round(_GRID - _GRID * share(height, axis_bytes))
            for height in accumulate((p.buckets_bytes.get(b, 0) for b in BUCKETS), initial=0)
        ]
        for p in points
    ]
    xs = [round(point.x * _GRID) for point in points]
    parts = []
    for index, bucket in enumerate(BUCKETS):
        lower = [f"{x} {column[index]}" for x, column in zip(xs, columns, strict=True)]
        upper = [f"{x} {column[index + 1]}" for x, column in zip(xs, columns, strict=True)]
        drawn = f"M{'L'.join(upper)}L{'L'.join(reversed(lower))}Z" if upper != lower else ""
        parts.append(f'<path class="{bucket}" d="{drawn}"><title>{words(bucket)}</title></path>')
    return "".join(parts)


def _ticks(axis_bytes: int) -> str:
    return "".join(
        f'<div class="tm-grid" style="bottom:{percent(share(at, axis_bytes))}"><span>{tick(at)}</span></div>'
        for at in tick_bytes(axis_bytes, ticks=4)[1:]
    )


def _limit(limit: CapacityLine, axis_bytes: int, peak_bytes: int) -> tuple[str, str]:
    """What stands above the drawing, and the line in it with its label, unless the curve is in the label's way."""
    dashed = " dashed" if limit.dashed else ""
    at = percent(share(limit.at_bytes, axis_bytes))
    is_crossed = peak_bytes > limit.at_bytes
    key = f'<p class="tm-limit-key{dashed}">{escape(limit.label)}</p>' if is_crossed else ""
    label = "" if is_crossed else f"<span>{escape(limit.label)}</span>"
    return key, f'<div class="tm-limit{dashed}" style="bottom:{at}">{label}</div>'


def _ribbon(points: Sequence[AreaPoint]) -> str:
    runs = [
        (phase, [point.x for point in run]) for phase, run in groupby(points, key=lambda point: point.phase)
    ]
    ends = [xs[0] for _, xs in runs[1:]] + [1.0]
    return "".join(
        f'<span style="width:{percent(end - xs[0])}" title="{words(phase)}" data-phase="{phase}">'
        f"<em>{words(phase)}</em></span>"
        for (phase, xs), end in zip(runs, ends, strict=True)
    )


def _said(points: Sequence[AreaPoint], totals: Sequence[int], peak_label: str) -> str:
    phases = dict.fromkeys(point.phase for point in points)
    tops = {
        phase: max(total for point, total in zip(points, totals, strict=True) if point.phase == phase)
        for phase in phases
    }
    parts = ", ".join(f"{phase} up to {format_gib(top)}" for phase, top in tops.items())
    return f"memory over one step: {parts}; {peak_label}"
