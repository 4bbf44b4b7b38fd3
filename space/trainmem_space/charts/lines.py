"""Lines over steps or sizes, told apart by ink, accent and dashes, and by a legend in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from trainmem_space.charts.text import escape, percent

__all__ = ["Line", "Tick", "line_chart"]

_GRID = 1000

Style = Literal["accent", "ink", "dashed", "dotted", "pale"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """``points`` are (x, y) as shares of the two axes, from the lower left."""

    name: str
    points: Sequence[tuple[float, float]]
    style: Style = "ink"
    dots: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    """A label on an axis, at a share of its length."""

    at: float
    text: str


def line_chart(
    lines: Sequence[Line], *, title: str, said: str, x: Sequence[Tick], y: Sequence[Tick], height: int = 200
) -> str:
    """The figure; ``said`` is read out in its place."""
    grid = "".join(
        f'<div class="tm-grid" style="bottom:{percent(tick.at)}"><span>{escape(tick.text)}</span></div>'
        for tick in y
    )
    under = "".join(
        f'<span class="{_end(tick.at)}" style="left:{percent(tick.at)}"><em>{escape(tick.text)}</em></span>'
        for tick in x
    )
    legend = "".join(
        f'<span><svg viewBox="0 0 24 8" aria-hidden="true"><path class="tm-curve {line.style}" d="M0 4H24"/></svg>'
        f"{escape(line.name)}</span>"
        for line in lines
    )
    return (
        f'<figure class="tm-area tm-curves" role="img" aria-label="{escape(said)}">'
        f"<figcaption>{escape(title)}</figcaption>"
        f'<div class="tm-canvas" style="height:{height}px">{grid}'
        f'<svg viewBox="0 0 {_GRID} {_GRID}" preserveAspectRatio="none" aria-hidden="true">'
        f"{''.join(_path(line) for line in lines)}</svg>{''.join(_dots(line) for line in lines)}</div>"
        f'<div class="tm-under" aria-hidden="true">{under}</div><div class="tm-legend">{legend}</div></figure>'
    )


def _end(at: float) -> str:
    """A label at an end of the axis is set inside it."""
    return "first" if at < 0.02 else "last" if at > 0.98 else ""


def _path(line: Line) -> str:
    drawn = "L".join(f"{round(_GRID * x)} {round(_GRID - _GRID * y)}" for x, y in line.points)
    return f'<path class="tm-curve {line.style}" d="M{drawn}"><title>{escape(line.name)}</title></path>'


def _dots(line: Line) -> str:
    if not line.dots:
        return ""
    return "".join(
        f'<i class="tm-dot {line.style}" style="left:{percent(x)};bottom:{percent(y)}"></i>'
        for x, y in line.points
    )
