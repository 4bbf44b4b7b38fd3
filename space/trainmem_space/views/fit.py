"""What fits, as HTML: the frontier with what each method opens to, and the 7B recipe by recipe."""

from __future__ import annotations

from html import escape

from trainmem.fit import EXAMPLE, MethodFit, Size, WhatFits
from trainmem.fit.family import family
from trainmem.fit.words import TIGHT, billions, in_short, thumb_sentence
from trainmem.whiteboard import LessonLimit
from trainmem_space.address import link_to
from trainmem_space.charts.frontier import FrontierRow, Mark, frontier
from trainmem_space.charts.text import size, words

__all__ = ["page_view"]


def page_view(page: WhatFits) -> str:
    """The page for a device or a budget."""
    like, at = page.like, page.room
    thumbs = {limit.method: limit for limit in page.lesson}
    curve = family(page.family).title
    rows = [_row(row, thumbs[row.method.kind], curve) for row in page.rows]
    return (
        f'<section class="tm-fit" data-detail="{page.detail}">'
        f'<p class="tm-sentence">On {escape(at.name)}</p><p class="tm-fit-short">{escape(in_short(page))}</p>'
        f"<p>Sizes along {escape(curve)}'s curve, at micro batch {like.micro_batch} of {like.sequence_length:,} "
        f"tokens, {_checkpointing(like.checkpointing)}. The allocator may hold {size(at.limit_bytes)}: the CUDA "
        f"context takes {size(at.context_bytes)} of {size(at.usable_bytes)}.</p>"
        f"{_legend()}{frontier(rows, _names(page))}"
        f"<h2>A 7B, recipe by recipe</h2>{_example(page)}</section>"
    )


def _names(page: WhatFits) -> dict[str, int]:
    """The family's models by what follows the family's name: ``8B``."""
    found = page.rows[0].members if page.rows else ()
    return {size.title.rpartition("-")[2].upper(): size.parameters for size in found}


def _checkpointing(kind: str) -> str:
    return "without checkpointing" if kind == "none" else "with checkpointing"


def _legend() -> str:
    keys = (
        ('<b class="mark measured fits"></b>', "measured"),
        ('<b class="mark predicted fits"></b>', "predicted"),
        ('<i class="riser"></i>', "the frontier"),
        ('<i class="thumb"></i>', "the rule of thumb"),
    )
    return '<p class="tm-fit-legend">' + "".join(f"<span>{key}{text}</span>" for key, text in keys) + "</p>"


def _row(row: MethodFit, thumb: LessonLimit, curve: str) -> FrontierRow:
    largest, model = row.curve.largest, row.catalogue.largest
    label = f"<strong>{billions(largest.parameters) if largest else f'no {escape(curve)} fits'}</strong>"
    if model is not None:
        name = escape(model.title) if largest else f"but {escape(model.title)} does"
        label += f"{'' if largest else ','} {name}{' (tight)' if model.tight else ''}"
    marks = [_mark(found) for found in row.members]
    if model is not None and all(found.name != model.name for found in row.members):
        marks.append(_mark(model))
    return FrontierRow(
        key=row.method.key,
        title=row.method.title,
        end=largest.parameters if largest else 0,
        ends_with_the_family=largest is not None and row.curve.beyond is None,
        label=label,
        marks=marks,
        thumb=(thumb.low_parameters, thumb.high_parameters),
        about=_about(row, thumb, curve),
    )


def _mark(found: Size) -> Mark:
    row = found.measured
    measured = row is not None and row.peak_allocated_bytes is not None
    how = f", measured on {row.machine}" if row is not None and measured else ", predicted"
    return Mark(
        parameters=found.parameters,
        title=f"{found.title}: {'fits' if found.fits else 'does not fit'}{how}",
        fits=found.fits,
        measured=measured,
    )


def _about(row: MethodFit, thumb: LessonLimit, curve: str) -> str:
    parts = []
    model = row.catalogue.largest
    if model is None:
        parts.append("No model of the catalogue fits.")
    else:
        peak = size(model.peak_allocated_bytes)
        tight = f" It is tight: {TIGHT}." if model.tight else ""
        parts.append(
            f"Largest in the catalogue: {escape(model.title)}, {billions(model.parameters)}, {peak}. It peaks at: "
            f"{escape(model.peak_instant)}; most of that is {words(model.binding_bucket)}.{tight} "
            f'<a href="{escape(link_to(model.job))}">Open in the Calculator</a>'
        )
    parts.append(_curve(row, curve))
    parts += [_measured(found) for found in row.members if found.measured]
    parts.append(f"Rule of thumb: {escape(thumb_sentence(thumb))}.")
    return "".join(f"<p>{part}</p>" for part in parts)


def _curve(row: MethodFit, curve: str) -> str:
    largest, beyond = row.curve.largest, row.curve.beyond
    if largest is None:
        return f"Not even the smallest size of {escape(curve)}'s curve fits."
    if beyond is None:
        return f"All of {escape(curve)}'s curve fits, to {billions(largest.parameters)}."
    return (
        f"Along {escape(curve)}'s curve, in steps of 4%: {billions(largest.parameters)} fits, "
        f"{billions(beyond.parameters)} does not."
    )


def _measured(found: Size) -> str:
    row = found.measured
    assert row is not None
    if row.peak_allocated_bytes is None:
        return f"{escape(found.title)}: ran out of memory on {escape(row.machine)}."
    seen = f"{size(row.peak_allocated_bytes)} measured on {escape(row.machine)}"
    return f"{escape(found.title)}: {size(found.predicted_bytes)} predicted, {seen}."


def _example(page: WhatFits) -> str:
    rows = []
    for row in page.rows:
        found = row.example
        if found is None:
            continue
        measured = found.measured
        fits = "tight" if found.tight else "fits" if found.fits else "too much"
        seen = size(measured.peak_allocated_bytes) if measured else "–"
        where = f' title="{escape(measured.machine)}"' if measured else ""
        rows.append(
            f'<tr class="{"fits" if found.fits else "short"}"><th scope="row">{escape(row.method.title)}</th>'
            f"<td>{size(found.peak_allocated_bytes)}</td><td{where}>{seen}</td><td>{fits}</td></tr>"
        )
    found = [row.example.measured for row in page.rows if row.example and row.example.measured]
    gpus = sorted({row.machine.partition(",")[0].removeprefix("NVIDIA ") for row in found})
    on = f", {escape(', '.join(gpus))}" if gpus else ""
    rule = next(limit for limit in page.lesson if limit.method == "full")
    return (
        f"<p>The rule of thumb says {escape(rule.answer)} by full fine-tuning. What {escape(EXAMPLE)} really needs, "
        f"at the same batch and length, depends on the recipe. It is always {escape(EXAMPLE)}: a "
        "7B as the rule means it, most of whose recipes were measured:</p>"
        '<table class="tm-table tm-fit-table"><thead><tr><th></th><td>predicted</td>'
        f"<td>measured{on}</td><td>answer</td></tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )
