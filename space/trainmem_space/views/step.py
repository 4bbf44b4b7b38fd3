"""One step over time: the area chart, and the instants one can step through."""

from __future__ import annotations

from html import escape

from trainmem.buckets import BUCKETS
from trainmem.estimate import Instant, Timeline
from trainmem.units import format_gib
from trainmem_space.charts.area import AreaPoint, area
from trainmem_space.charts.bar import CapacityLine
from trainmem_space.charts.text import percent, size, words

__all__ = ["clock_view", "step_view"]


def step_view(step: Timeline, limit: CapacityLine | None) -> str:
    """The small chart of the Calculator."""
    return f"<h2>One step, GiB</h2>{_area(step, limit, height=180)}"


def clock_view(step: Timeline, limit: CapacityLine | None, notices: tuple[str, ...]) -> str:
    """The chart with its instants: every one is on the page, and the script shows one at a time."""
    peak = max(range(len(step.instants)), key=lambda index: step.instants[index].total_bytes)
    instants = "".join(
        _instant(index, instant, len(step.instants)) for index, instant in enumerate(step.instants)
    )
    said = "".join(f"<li>{escape(notice)}</li>" for notice in notices)
    slider = (
        f'<input type="range" min="0" max="{len(step.instants) - 1}" value="{peak}" aria-label="instant">'
    )
    return (
        f'<div class="tm-clock" data-peak="{peak}">{_area(step, limit, height=320)}<div class="tm-hands">'
        f'<button type="button" data-step="-1" aria-label="previous instant">◂</button>{slider}'
        '<button type="button" data-step="1" aria-label="next instant">▸</button></div>'
        f'<div class="tm-instants" aria-live="polite">{instants}</div>'
        f'<div class="tm-notices"><h2>Three things to notice</h2><ol>{said}</ol></div></div>'
    )


def _area(step: Timeline, limit: CapacityLine | None, height: int) -> str:
    peak = max(step.instants, key=lambda instant: instant.total_bytes)
    points = [AreaPoint(x=p.x, phase=p.phase, buckets_bytes=p.buckets) for p in step.curve]
    return area(points, peak_label=f"peak {format_gib(peak.total_bytes)}", limit=limit, height=height)


def _instant(index: int, instant: Instant, count: int) -> str:
    rows = "".join(
        f'<tr><th scope="row"><i class="{bucket}"></i>{words(bucket)}</th><td>{size(part)}</td></tr>'
        for bucket in BUCKETS
        if (part := instant.buckets.get(bucket, 0))
    )
    return (
        f'<section data-x="{percent(instant.x)}" hidden><h3>{escape(instant.name)} '
        f"<small>{index + 1} of {count}, {words(instant.phase)}</small></h3>"
        f"<p>{escape(instant.sentence)}</p>"
        f'<table class="tm-table"><tbody>{rows}</tbody><tfoot><tr><th scope="row">allocated</th>'
        f"<td>{size(instant.total_bytes)}</td></tr></tfoot></table></section>"
    )
