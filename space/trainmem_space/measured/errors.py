"""How good the predictions are: the scatter and the accuracy table."""

from __future__ import annotations

from collections.abc import Sequence

from trainmem.results import ENGINES, MeasuredRow, Predictions, accuracy
from trainmem.results.accuracy import Counter
from trainmem.results.tables import compared, row_title
from trainmem.units import format_gib
from trainmem_space.charts.scatter import Dot, scatter
from trainmem_space.measured.parts import wide

__all__ = ["errors"]


def errors(rows: Sequence[MeasuredRow], known: Predictions) -> str:
    """Every published step beside every engine's answer."""
    steps = [row for row in rows if row.kind == "step" and row.outcome == "ok" and row.peak_allocated_bytes]
    items = [item for item in compared(steps, known) if any(item.predicted_bytes.values())]
    head = "<h2>Predicted and measured</h2>"
    if not items:
        return f'{head}<p class="tm-note">No row of this machine has a prediction beside it yet.</p>'
    dots = []
    for item in items:
        measured = item.row.peak_allocated_bytes or 0
        answers = [
            f"{engine} {format_gib(predicted)} ({error:+.2%})"
            for engine in ENGINES
            if (predicted := item.predicted_bytes[engine]) and (error := item.errors[engine]) is not None
        ]
        dots.append(
            Dot(
                measured_bytes=measured,
                predicted_bytes={e: p for e, p in item.predicted_bytes.items() if p},
                said=f"{row_title(item.row)}: measured {format_gib(measured)}; {', '.join(answers)}",
            )
        )
    engines = [engine for engine in ENGINES if any(engine in dot.predicted_bytes for dot in dots)]
    table = _table(rows, known)
    said = f"{len(dots)} measured steps; the table below has each engine's errors"
    return (
        f'{head}<div class="tm-errors"><div>{scatter(dots, engines, said=said)}</div><div>{table}</div></div>'
    )


def _table(rows: Sequence[MeasuredRow], known: Predictions) -> str:
    counters: tuple[Counter, ...] = ("allocated", "reserved")
    lines = []
    for engine in ENGINES:
        for counter in counters:
            found = accuracy(rows, known, engine, counter)
            if found is not None:
                lines.append(
                    f"<tr><th>{engine}, {counter}</th><td>{found.rows}</td><td>{found.median:.2%}</td>"
                    f"<td>{found.p95:.2%}</td><td>{found.worst:.2%}</td><td>{found.under}</td></tr>"
                )
    heads = "".join(f"<th>{name}</th>" for name in ("", "rows", "median", "p95", "worst", "under by 0.5%"))
    body = f"<thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody>"
    table = f'<table class="tm-table tm-accuracy">{body}</table>'
    return (
        wide("accuracy", table)
        + '<p class="tm-note">Errors of the peak, as shares of the measured one. An answer that is under by more '
        "than 0.5% would have promised memory that was not there.</p>"
    )
