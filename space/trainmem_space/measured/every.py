"""Every row of a suite, each open to its provenance."""

from __future__ import annotations

from collections.abc import Sequence

from trainmem.results import MeasuredRow, Predictions
from trainmem.results.tables import compared, of_suite, row_title
from trainmem_space.charts.text import escape, size
from trainmem_space.measured.parts import error_cell, head_of, wide
from trainmem_space.measured.provenance import provenance

__all__ = ["every_row"]


def every_row(rows: Sequence[MeasuredRow], known: Predictions, suite: str) -> str:
    """The table of one suite."""
    found = of_suite(rows, suite)
    if not found:
        return '<p class="tm-note">No rows of this machine in this suite.</p>'
    lines = []
    for item in compared(found, known):
        row = item.row
        ending = "" if row.outcome == "ok" else f" <small>{escape(row.outcome)}</small>"
        lines.append(
            f'<details><summary class="tm-lines-of tm-every"><span>{escape(row_title(row))}{ending}</span>'
            f"<span>{size(row.peak_allocated_bytes)}</span>"
            f"{error_cell(item.predicted_bytes['tape'], item.errors['tape'])}"
            f"<span>{size(row.peak_reserved_bytes)}</span></summary>{provenance(row)}</details>"
        )
    header = head_of("tm-every", ("row", "measured", "tape", "reserved"))
    return wide("every row", f'<div class="tm-lessons">{header}{"".join(lines)}</div>')
