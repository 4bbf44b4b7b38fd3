"""One step over time: the area chart, and the instants one can step through."""

from __future__ import annotations

from html import escape

from trainmem.buckets import BUCKETS
from trainmem.estimate import Instant, Timeline
from trainmem.scale import share
from trainmem.units import format_gib
from trainmem_space.charts.area import AreaPoint, area, axis_of
from trainmem_space.charts.bar import CapacityLine
from trainmem_space.charts.text import cell, percent, size, words

__all__ = ["clock_view", "step_view"]


_SLIDER = 1000
"""The slider runs along the time axis, and stops at the nearest instant."""


def step_view(step: Timeline, limit: CapacityLine | None) -> str:
    """The small chart of the Calculator."""
    return f"<h2>One step, GiB</h2>{_area(step, limit, height=180)}"


def clock_view(step: Timeline, limit: CapacityLine | None, notices: tuple[str, ...]) -> str:
    """The chart with its instants: every one is on the page, and the script shows one at a time."""
    peak = max(range(len(step.instants)), key=lambda index: step.instants[index].total_bytes)
    axis = axis_of(_points(step), limit)
    instants = "".join(
        _instant(index, instant, len(step.instants), axis) for index, instant in enumerate(step.instants)
    )
    said = "".join(f"<li>{escape(notice)}</li>" for notice in notices)
    slider = f'<input type="range" min="0" max="{_SLIDER}" value="0" aria-label="instant of the step">'
    return (
        f'<div class="tm-clock" data-peak="{peak}">{_area(step, limit, height=320)}'
        f'<div class="tm-time">{slider}<div class="tm-hands">'
        '<button type="button" data-step="-1" aria-label="previous instant">◂</button>'
        '<span class="tm-at" aria-hidden="true"></span>'
        '<button type="button" data-step="1" aria-label="next instant">▸</button></div></div>'
        f'<div class="tm-instants" aria-live="polite">{instants}</div>'
        f'<div class="tm-notices"><h2>Three things to notice</h2><ol>{said}</ol></div></div>'
    )


def _area(step: Timeline, limit: CapacityLine | None, height: int) -> str:
    peak = max(step.instants, key=lambda instant: instant.total_bytes)
    return area(_points(step), peak_label=f"peak {format_gib(peak.total_bytes)}", limit=limit, height=height)


def _points(step: Timeline) -> list[AreaPoint]:
    return [AreaPoint(x=p.x, phase=p.phase, buckets_bytes=p.buckets) for p in step.curve]


def _instant(index: int, instant: Instant, count: int, axis_bytes: int) -> str:
    rows = "".join(
        f'<tr><th scope="row"><i class="{bucket}"></i>{words(bucket)}</th><td>{cell(part)}</td></tr>'
        for bucket in BUCKETS
        if (part := instant.buckets.get(bucket, 0))
    )
    top = percent(share(instant.total_bytes, axis_bytes))
    return (
        f'<section data-x="{instant.x:.5f}" data-top="{top}" hidden><h3>{escape(instant.name)} '
        f"<small>{index + 1} of {count}, {words(instant.phase)}</small></h3>"
        f"<p>{escape(instant.sentence)}</p>"
        f'<table class="tm-table"><tbody>{rows}</tbody><tfoot><tr><th scope="row">allocated</th>'
        f"<td>{size(instant.total_bytes)}</td></tr></tfoot></table></section>"
    )
