"""Runs into one list of rows: implausible ones refused with the reason, repeated ones once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from trainmem.results import MeasuredRow, RowError, read_rows, refusals

__all__ = ["Merged", "Refused", "merge", "read_run"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Refused:
    """A row that is not published, and every reason."""

    row: MeasuredRow
    reasons: tuple[str, ...]


@dataclass(kw_only=True, slots=True)
class Merged:
    """What is published, what is refused, and how many rows were there twice."""

    rows: list[MeasuredRow] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    repeated: int = 0


def read_run(path: Path) -> list[MeasuredRow]:
    """The rows of a run's folder or of a JSON Lines file. Raises `RowError`."""
    file = path / "rows.jsonl" if path.is_dir() else path
    if file.exists() and not file.is_file():  # a device may have no end
        raise RowError(f"run: {file} is not an ordinary file")
    try:
        return read_rows(file.read_text(encoding="utf-8"), source=str(file))
    except UnicodeDecodeError:
        raise RowError(f"run: {file} is not text in UTF-8") from None
    except OSError as error:
        raise RowError(f"run: {path}: {error.strerror or error}") from None


def merge(runs: Iterable[Iterable[MeasuredRow]]) -> Merged:
    """All rows of all runs in order; of rows that are equal to the byte the first stays, and so does the
    first preflight of a feature on a machine, which every run repeats."""
    merged = Merged()
    seen: set[object] = set()
    for run in runs:
        for row in run:
            name = (row.machine, row.label) if row.kind == "preflight" else row.id
            if name in seen:
                merged.repeated += 1
                continue
            seen.add(name)
            reasons = refusals(row)
            if reasons:
                merged.refused.append(Refused(row=row, reasons=tuple(reasons)))
            else:
                merged.rows.append(row)
    return merged
