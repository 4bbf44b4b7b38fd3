"""The rows and predictions that travel inside the package."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from trainmem.job import TrainingJob
from trainmem.results.likeness import traits
from trainmem.results.row import MeasuredRow, RowError, read_row

__all__ = [
    "PREDICTIONS_SCHEMA",
    "Prediction",
    "Predictions",
    "forget_published_rows",
    "predictions",
    "published_rows",
    "published_rows_where",
    "read_predictions",
]

PREDICTIONS_SCHEMA = "trainmem.predictions/1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """What one engine answers for a row's job; ``error`` says why where it has no answer."""

    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    error: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Predictions:
    """Every engine's answer to every published job, made when the rows were published.

    ``of_row`` goes from a row's id to engine to prediction; ``traits_of_row`` and ``measured_bytes`` repeat
    what a lookup needs of each row, so that it need not read the rows.
    """

    version: str
    of_row: Mapping[str, Mapping[str, Prediction]] = field(hash=False)
    traits_of_row: Mapping[str, tuple[str, ...]] = field(hash=False)
    measured_bytes: Mapping[str, int] = field(hash=False)

    def error(self, row_id: str, engine: str) -> float | None:
        """Predicted allocated peak over the measured one, minus 1; None where there is no answer."""
        answer = self.of_row.get(row_id, {}).get(engine)
        truth = self.measured_bytes.get(row_id)
        if answer is None or answer.peak_allocated_bytes is None or not truth:
            return None
        return answer.peak_allocated_bytes / truth - 1

    def to_json(self) -> dict[str, Any]:
        """As the file holds it."""
        return {
            "schema": PREDICTIONS_SCHEMA,
            "version": self.version,
            "rows": {
                row_id: {
                    "traits": list(self.traits_of_row[row_id]),
                    "measured_bytes": self.measured_bytes[row_id],
                    **{
                        engine: {"error": answer.error}
                        if answer.error is not None
                        else {
                            "allocated": answer.peak_allocated_bytes,
                            "reserved": answer.peak_reserved_bytes,
                        }
                        for engine, answer in answers.items()
                    },
                }
                for row_id, answers in self.of_row.items()
            },
        }


def read_predictions(data: Mapping[str, Any]) -> Predictions:
    """The inverse of `Predictions.to_json`."""
    if data.get("schema") != PREDICTIONS_SCHEMA:
        raise RowError(f"schema: {data.get('schema')!r} is not {PREDICTIONS_SCHEMA!r}")
    of_row, kinds, truths = {}, {}, {}
    for row_id, entry in data["rows"].items():
        kinds[row_id] = tuple(entry["traits"])
        truths[row_id] = entry["measured_bytes"]
        of_row[row_id] = {
            engine: Prediction(
                peak_allocated_bytes=answer.get("allocated"),
                peak_reserved_bytes=answer.get("reserved"),
                error=answer.get("error"),
            )
            for engine, answer in entry.items()
            if isinstance(answer, Mapping)
        }
    return Predictions(version=data["version"], of_row=of_row, traits_of_row=kinds, measured_bytes=truths)


def predictions_for(
    rows: Iterable[MeasuredRow], answers: Mapping[str, Mapping[str, Prediction]], *, version: str
) -> Predictions:
    """`Predictions` of the step rows that have a measured peak, from each engine's answers by row id."""
    kept = [row for row in rows if row.kind == "step" and row.outcome == "ok" and row.peak_allocated_bytes]
    return Predictions(
        version=version,
        of_row={row.id: answers.get(row.id, {}) for row in kept},
        traits_of_row={row.id: traits(_job(row)) for row in kept},
        measured_bytes={row.id: row.peak_allocated_bytes or 0 for row in kept},
    )


def _job(row: MeasuredRow) -> TrainingJob:
    assert row.job is not None
    return row.job


@cache
def published_rows() -> tuple[MeasuredRow, ...]:
    """Every row bundled with the package, file by file in the order of their names."""
    return tuple(read_row(_published_object(number)) for number in range(len(_published_lines())))


def published_rows_where(
    keep: Callable[[Mapping[str, Any]], bool], *, saying: Iterable[str] = ()
) -> Iterator[MeasuredRow]:
    """The rows whose JSON objects ``keep`` agrees to; to read the jobs of all takes longer than a page may.

    ``saying``: regular expressions that the text of each of them has, so that no other is read as JSON at all.
    """
    found = [re.compile(pattern.encode()).search for pattern in saying]
    for number, line in enumerate(_published_lines()):
        if all(search(line) for search in found) and keep(data := _published_object(number)):
            yield read_row(data)


def forget_published_rows() -> None:
    """Read the files again when rows are next asked for: they have changed."""
    _published_lines.cache_clear()
    _published_object.cache_clear()
    published_rows.cache_clear()


@cache
def _published_lines() -> tuple[bytes, ...]:
    """As they stand in the files: to decode those that nobody asks for takes longer than to look through them."""
    folder = resources.files("trainmem").joinpath("measured")
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".jsonl"))
    return tuple([line for name in names for line in folder.joinpath(name).read_bytes().splitlines()])


@cache
def _published_object(number: int) -> Mapping[str, Any]:
    data: Mapping[str, Any] = json.loads(_published_lines()[number])
    return data


@cache
def predictions() -> Predictions:
    """The bundled predictions; empty where the file is missing."""
    file = resources.files("trainmem").joinpath("measured/predictions.json")
    if not file.is_file():
        return Predictions(version="", of_row={}, traits_of_row={}, measured_bytes={})
    return read_predictions(json.loads(file.read_text(encoding="utf-8")))
