"""Published rows arranged as people ask for them: by machine, the textbook job's table, the limits, the curves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainmem.results.accuracy import ENGINES
from trainmem.results.published import Predictions
from trainmem.results.row import Kind, MeasuredRow

__all__ = [
    "WITHOUT_SUITE",
    "Compared",
    "compared",
    "largest_of",
    "machines_of",
    "of_machine",
    "of_suite",
    "one_machine",
    "row_title",
    "suites_of",
]

WITHOUT_SUITE = "first rows"
"""Rows that were published before there were suites."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """A measured row beside every engine's answer: predicted bytes and error, None where there is none."""

    row: MeasuredRow
    predicted_bytes: dict[str, int | None]
    errors: dict[str, float | None]


def machines_of(rows: Iterable[MeasuredRow]) -> list[str]:
    """The machines in the order of their first row."""
    return list(dict.fromkeys(row.machine for row in rows))


def of_machine(rows: Iterable[MeasuredRow], machine: str | None) -> list[MeasuredRow]:
    """The rows of one machine; of all of them for None."""
    return [row for row in rows if machine is None or row.machine == machine]


def one_machine(rows: Sequence[MeasuredRow], suite: str) -> list[MeasuredRow]:
    """The rows of the first machine that ran ``suite``: a curve through two machines means nothing."""
    first = next((row.machine for row in rows if row.suite == suite), None)
    return of_machine(rows, first) if first is not None else []


def suites_of(rows: Iterable[MeasuredRow]) -> list[str]:
    """The suites, ``lesson`` first and rows without one last."""
    found = list(dict.fromkeys(row.suite or WITHOUT_SUITE for row in rows))
    return sorted(found, key=lambda name: (name != "lesson", name == WITHOUT_SUITE))


def of_suite(rows: Iterable[MeasuredRow], suite: str, *, kind: Kind | None = None) -> list[MeasuredRow]:
    """The rows of one suite, of one kind where one is named; probes of a search are left out."""
    return [
        row
        for row in rows
        if (row.suite or WITHOUT_SUITE) == suite
        and (kind is None or row.kind == kind)
        and not (row.data.get("options") or {}).get("probe")
    ]


def largest_of(rows: Iterable[MeasuredRow], row: MeasuredRow) -> MeasuredRow | None:
    """The search for the largest batch of the same configuration on the same machine."""
    wanted = f"largest batch, {row.label}"
    return next(
        (
            other
            for other in rows
            if other.kind == "largest_batch" and other.label == wanted and other.machine == row.machine
        ),
        None,
    )


def compared(rows: Sequence[MeasuredRow], known: Predictions) -> list[Compared]:
    """Each row with its predictions."""
    found = []
    for row in rows:
        answers = known.of_row.get(row.id, {})
        predicted = {
            engine: answers[engine].peak_allocated_bytes if engine in answers else None for engine in ENGINES
        }
        errors = {engine: known.error(row.id, engine) for engine in ENGINES}
        found.append(Compared(row=row, predicted_bytes=predicted, errors=errors))
    return found


def row_title(row: MeasuredRow) -> str:
    """What a row is called: its label, or the levers of its job that are not the usual ones."""
    if row.label is not None:
        return row.label
    if row.job is None:
        return row.kind
    job = row.job
    name = job.model or str((job.config or {}).get("model_type", "config"))
    parts = [f"{name}, b = {job.micro_batch}, s = {job.sequence_length:,}", job.precision]
    usual = {"optimizer": "adamw", "attention": "sdpa", "loss": "standard"}
    parts += [str(getattr(job, field)) for field, value in usual.items() if getattr(job, field) != value]
    if job.checkpointing != "none":
        parts.append("checkpointing" if job.checkpointing == "full" else f"{job.checkpointing} checkpointing")
    if job.accumulation > 1:
        parts.append(f"accumulation {job.accumulation}")
    if job.lora is not None:
        parts.append(f"LoRA {job.lora.rank}")
    if job.base_quantization != "none":
        parts.append(job.base_quantization)
    if job.zero_grad != "none":
        parts.append("gradients kept as zeros")
    return ", ".join(parts)
