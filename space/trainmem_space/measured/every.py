"""Every row of a suite, each open to its provenance."""

from __future__ import annotations

from collections.abc import Sequence

from trainmem.results import MeasuredRow, Predictions
from trainmem.results.tables import compared, of_suite, row_title
from trainmem_space.charts.text import escape, size
from trainmem_space.measured.parts import error_cell, head_of, line_of, wide
from trainmem_space.measured.provenance import provenance

__all__ = ["every_row"]


_NAMES = ("row", "measured", "tape", "reserved")


def every_row(rows: Sequence[MeasuredRow], known: Predictions, suite: str) -> str:
    """The table of one suite."""
    found = of_suite(rows, suite)
    if not found:
        return '<p class="tm-note">No rows of this machine in this suite.</p>'
    lines = []
    for item in compared(found, known):
        row = item.row
        ending = "" if row.outcome == "ok" else f" <small>{escape(row.outcome)}</small>"
        cells = (
            f"{escape(row_title(row))}{ending}",
            _found(row),
            error_cell(item.predicted_bytes["tape"], item.errors["tape"]),
            size(row.peak_reserved_bytes),
        )
        lines.append(line_of("tm-every", _NAMES, cells, provenance(row)))
    header = head_of("tm-every", _NAMES)
    return wide("every row", f'<div class="tm-lessons">{header}{"".join(lines)}</div>')


def _found(row: MeasuredRow) -> str:
    """The peak; of a search for the largest micro batch, that."""
    if row.kind != "largest_batch":
        return size(row.peak_allocated_bytes)
    largest = row.measured.get("largest_micro_batch") if row.measured else None
    return f'<span class="tm-num">micro batch {largest}</span>' if largest else size(None)
