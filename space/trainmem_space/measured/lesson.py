"""The textbook job with one lever moved at a time (suite ``lesson``): measured, and predicted on every rung."""

from __future__ import annotations

from collections.abc import Sequence

from trainmem.results import ENGINES, MeasuredRow, Predictions
from trainmem.results.tables import Compared, compared, largest_of, of_suite
from trainmem_space.charts.text import escape, size
from trainmem_space.measured.parts import error_cell, head_of, line_of, not_run, wide
from trainmem_space.measured.provenance import provenance

__all__ = ["lesson_table"]

_NAMES = ("run", "measured", *ENGINES, "reserved", "step 1", "s a step", "largest batch")


def lesson_table(rows: Sequence[MeasuredRow], known: Predictions, machine: str | None) -> str:
    """GPT-2 774M at 1,024 tokens, one line a configuration; each opens to its row."""
    steps = of_suite(rows, "lesson", kind="step")
    head = (
        "<h2>The textbook job, lever by lever</h2><p>GPT-2 774M, 1,024 tokens, AMP bf16: the peak of allocated "
        "memory in a steady step, and how far each rung was off. Open a line for everything behind it.</p>"
    )
    if not steps:
        return head + not_run("lesson", machine)
    where = f'<p class="tm-note">Measured on {escape(steps[0].machine)}.</p>' if machine is None else ""
    lines = "".join(_line(item, largest_of(rows, item.row)) for item in compared(steps, known))
    return (
        head
        + where
        + wide(
            "the textbook job, lever by lever",
            f'<div class="tm-lessons">{head_of("tm-lesson", _NAMES)}{lines}</div>',
        )
    )


def _line(item: Compared, largest: MeasuredRow | None) -> str:
    row = item.row
    first = (row.measured.get("first_step") or {}).get("peak_bytes")
    seconds = f"{row.step_seconds:.3f}" if row.step_seconds is not None else "–"
    cells = (
        escape(row.label or ""),
        size(row.peak_allocated_bytes),
        *(error_cell(item.predicted_bytes[e], item.errors[e]) for e in ENGINES),
        size(row.peak_reserved_bytes),
        size(first),
        f'<span class="tm-num">{seconds}</span>',
        _largest(largest),
    )
    return line_of("tm-lesson", _NAMES, cells, provenance(row))


def _largest(row: MeasuredRow | None) -> str:
    if row is None or not row.measured:
        return '<span class="tm-num">–</span>'
    found = row.measured
    predicted = found.get("predicted_micro_batch")
    proof = "the next one ran out of memory" if found.get("proved") else "the next one was not reached"
    said = f"predicted {predicted}; {proof}; {len(found.get('trials', []))} trials"
    return f'<span class="tm-num" title="{escape(said)}">{found.get("largest_micro_batch") or "none"}</span>'
