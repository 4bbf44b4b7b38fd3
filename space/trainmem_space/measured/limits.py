"""The largest models, measured: what fitted, what ran out, and what was not even tried."""

from __future__ import annotations

from collections.abc import Sequence

from trainmem.results import MeasuredRow, Predictions
from trainmem.results.flops import architecture_of_job
from trainmem.results.tables import compared, of_suite
from trainmem_space.charts.text import escape, size
from trainmem_space.measured.parts import error_cell, head_of, line_of, not_run, wide
from trainmem_space.measured.provenance import provenance

__all__ = ["limits"]

_NAMES = ("model, method", "outcome", "measured", "tape", "machine")
_ENDINGS = {
    "ok": "fits",
    "oom": "out of memory",
    "guard_stopped": "stopped by the guard",
    "killed": "killed",
    "error": "failed",
    "skipped": "refused",
}


def _size(row: MeasuredRow) -> int:
    return architecture_of_job(row.job).parameter_count if row.job is not None else 0


def limits(rows: Sequence[MeasuredRow], known: Predictions, machine: str | None) -> str:
    """One line a model and method, from the rows of the limits suite."""
    found = of_suite(rows, "limits", kind="step")
    head = (
        "<h2>The limits</h2><p>Micro batch 1, 2,048 tokens, checkpointing: the least that is still training. "
        "Random weights, nothing downloaded. Refused: predicted over the capacity, so not run.</p>"
    )
    if not found:
        return head + not_run("limits", machine)
    lines = []
    for item in compared(sorted(found, key=_size), known):
        row = item.row
        guard = row.data.get("guard") or {}
        predicted = item.predicted_bytes["tape"] or guard.get("predicted_peak_bytes")
        error = item.errors["tape"]
        cell = error_cell(predicted, error) if error is not None else size(predicted)
        machine = row.machine.removeprefix("NVIDIA ")
        cells = (
            escape(row.label or ""),
            escape(_ENDINGS[row.outcome]),
            size(row.peak_allocated_bytes),
            cell,
            escape(machine),
        )
        lines.append(line_of("tm-limits", _NAMES, cells, provenance(row)))
    header = head_of("tm-limits", _NAMES)
    return head + wide("the limits", f'<div class="tm-lessons">{header}{"".join(lines)}</div>')
