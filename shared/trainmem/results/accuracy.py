"""How good the predictions are: predicted against measured, as one table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from trainmem.results.published import Predictions
from trainmem.results.row import MeasuredRow

__all__ = ["ENGINES", "UNDER", "Accuracy", "Point", "accuracy", "points"]

ENGINES = ("whiteboard", "tape", "trace")

UNDER = 0.005
"""An answer this far below the measurement would have promised memory that was not there."""

Counter = Literal["allocated", "reserved"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One measured row beside one engine's answer."""

    row: MeasuredRow
    engine: str
    predicted_bytes: int
    measured_bytes: int

    @property
    def error(self) -> float:
        """Predicted over measured, minus 1."""
        return self.predicted_bytes / self.measured_bytes - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Accuracy:
    """An engine's errors over a set of rows, as shares of the measured peak."""

    engine: str
    counter: Counter
    rows: int
    unanswered: int
    median: float
    p95: float
    worst: float
    under: int

    def to_json(self) -> dict[str, Any]:
        """For tables and cards."""
        return {name: getattr(self, name) for name in self.__slots__}


def points(
    rows: Iterable[MeasuredRow], known: Predictions, engine: str, counter: Counter = "allocated"
) -> tuple[list[Point], list[MeasuredRow]]:
    """The rows that ``engine`` answered, and those it did not."""
    answered, missing = [], []
    for row in rows:
        if row.id not in known.measured_bytes:
            continue
        answer = known.of_row[row.id].get(engine)
        predicted = None
        if answer is not None:
            predicted = answer.peak_allocated_bytes if counter == "allocated" else answer.peak_reserved_bytes
        measured = row.peak_allocated_bytes if counter == "allocated" else row.peak_reserved_bytes
        if predicted is None or not measured:
            missing.append(row)
            continue
        answered.append(Point(row=row, engine=engine, predicted_bytes=predicted, measured_bytes=measured))
    return answered, missing


def accuracy(
    rows: Iterable[MeasuredRow], known: Predictions, engine: str, counter: Counter = "allocated"
) -> Accuracy | None:
    """Median, 95th percentile (nearest rank) and worst of the absolute errors; None where nothing was
    answered."""
    answered, missing = points(rows, known, engine, counter)
    if not answered:
        return None
    sizes = sorted(abs(point.error) for point in answered)
    return Accuracy(
        engine=engine,
        counter=counter,
        rows=len(sizes),
        unanswered=len(missing),
        median=median(sizes),
        p95=sizes[min(len(sizes) - 1, int(0.95 * len(sizes)))],
        worst=sizes[-1],
        under=sum(point.error < -UNDER for point in answered),
    )


def by_trait(
    rows: Iterable[MeasuredRow], known: Predictions, engine: str, trait: int
) -> Mapping[str, Accuracy]:
    """`accuracy` of each value of one trait (its index in `TRAITS`), to see where an engine is weak."""
    groups: dict[str, list[MeasuredRow]] = {}
    for row in rows:
        if row.id in known.traits_of_row:
            groups.setdefault(known.traits_of_row[row.id][trait], []).append(row)
    found = {value: accuracy(group, known, engine) for value, group in groups.items()}
    return {value: answer for value, answer in found.items() if answer is not None}
