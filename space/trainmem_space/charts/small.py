"""The quiz's small charts: layers over x, lettered or named stretches under the axis, one limit."""

from __future__ import annotations

from itertools import accumulate

from trainmem.quiz.chart import Chart
from trainmem_space.charts.text import escape, percent

__all__ = ["small_chart"]

_GRID = 1000


def small_chart(chart: Chart, *, height: int = 200) -> str:
    """The figure; ``chart.alt`` is read out in its place."""
    end, ticks = chart.axis_gib
    grid = "".join(
        f'<div class="tm-grid" style="bottom:{percent(tick / end)}"><span>{tick:g}</span></div>'
        for tick in ticks[1:]
    )
    drawing = f'<svg viewBox="0 0 {_GRID} {_GRID}" preserveAspectRatio="none" aria-hidden="true">'
    under = _ribbons(chart) or _labels(chart)
    return (
        f'<figure class="tm-area tm-small" role="img" aria-label="{escape(chart.alt)}">'
        f"<figcaption>{escape(chart.title)}, GiB</figcaption>"
        f'<div class="tm-canvas" style="height:{height}px">{grid}{drawing}{_layers(chart, end)}</svg>'
        f"{_limit(chart, end)}</div>{under}{_legend(chart)}</figure>"
    )


def _layers(chart: Chart, end: float) -> str:
    columns = [
        list(accumulate((series.values_gib[i] for series in chart.series), initial=0.0))
        for i in range(len(chart.x))
    ]
    xs = [round(_GRID * chart.x_share(x)) for x in chart.x]
    paths = []
    for layer, series in enumerate(chart.series):
        lower = [f"{x} {_down(column[layer], end)}" for x, column in zip(xs, columns, strict=True)]
        upper = [f"{x} {_down(column[layer + 1], end)}" for x, column in zip(xs, columns, strict=True)]
        kind = series.bucket or "tm-allocated"
        paths.append(f'<path class="{kind}" d="M{"L".join(upper)}L{"L".join(reversed(lower))}Z"/>')
    return "".join(paths)


def _down(value: float, end: float) -> int:
    return round(_GRID - _GRID * value / end)


def _limit(chart: Chart, end: float) -> str:
    if chart.limit is None:
        return ""
    at = percent(chart.limit.value_gib / end)
    return f'<div class="tm-limit" style="bottom:{at}"><span>{escape(chart.limit.label)}</span></div>'


def _ribbons(chart: Chart) -> str:
    if not chart.ribbons:
        return ""
    spans = "".join(
        f'<span style="left:{percent(chart.x_share(r.start))};'
        f'width:{percent(chart.x_share(r.end) - chart.x_share(r.start))}" title="{escape(r.name)}">'
        f"<em{' class=long' if len(r.name) > 1 else ''}>{escape(r.name)}</em></span>"
        for r in chart.ribbons
    )
    return f'<div class="tm-stretches" aria-hidden="true">{spans}</div>'


def _labels(chart: Chart) -> str:
    if not chart.x_labels:
        return ""
    spans = "".join(
        f'<span style="left:{percent(chart.x_share(x))}"><em>{escape(label)}</em></span>'
        for x, label in chart.x_labels
    )
    return f'<div class="tm-stretches tm-points" aria-hidden="true">{spans}</div>'


def _legend(chart: Chart) -> str:
    named = [series for series in chart.series if series.bucket is not None]
    if not named:
        return ""
    items = "".join(f'<span><i class="{s.bucket}"></i>{escape(s.name)}</span>' for s in named)
    return f'<div class="tm-small-legend">{items}</div>'
