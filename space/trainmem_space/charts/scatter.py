"""Predicted against measured on two equal logarithmic axes: what is right lies on the diagonal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainmem.scale import LogAxis
from trainmem_space.charts.text import escape, percent, tick

__all__ = ["Dot", "scatter"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Dot:
    """One row: its measured peak, what each engine said, and the sentence that tells it."""

    measured_bytes: int
    predicted_bytes: dict[str, int]
    said: str


def scatter(dots: Sequence[Dot], engines: Sequence[str], *, said: str) -> str:
    """The figure, with a place for the sentence of the dot that is pointed at."""
    everything = [dot.measured_bytes for dot in dots]
    everything += [size for dot in dots for size in dot.predicted_bytes.values()]
    axis = LogAxis.around(everything)
    shown = [(percent(axis.share(size)), tick(size)) for size in axis.tick_bytes()]
    grid = "".join(
        f'<div class="tm-grid" style="bottom:{at}"><span>{text}</span></div>' for at, text in shown
    )
    under = "".join(f'<span style="left:{at}"><em>{text}</em></span>' for at, text in shown)
    marks = "".join(
        f'<i class="tm-dot {engine}" data-row="{index}" style="left:{percent(axis.share(dot.measured_bytes))};'
        f'bottom:{percent(axis.share(dot.predicted_bytes[engine]))}"></i>'
        for engine in engines
        for index, dot in enumerate(dots)
        if engine in dot.predicted_bytes
    )
    sentences = "".join(f"<li>{escape(dot.said)}</li>" for dot in dots)
    legend = "".join(f'<span><i class="tm-dot {engine}"></i>{escape(engine)}</span>' for engine in engines)
    return (
        f'<figure class="tm-area tm-scatter" role="img" aria-label="{escape(said)}">'
        "<figcaption>Predicted peak (up) against measured peak (right), GiB, both logarithmic</figcaption>"
        f'<div class="tm-canvas">{grid}<svg viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true">'
        f'<path class="tm-curve dashed" d="M0 100L100 0"/></svg>{marks}</div>'
        f'<div class="tm-under" aria-hidden="true">{under}</div><div class="tm-legend">{legend}</div></figure>'
        '<p class="tm-said" aria-live="polite">Point at a dot, or tap it, to see its job.</p>'
        f"<ol hidden>{sentences}</ol>"
    )
