"""Every engine's answer to every measured job, made when rows are published and not when they are
measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import cast

import trainmem
from trainmem.job import JobError, TrainingJob
from trainmem.results import ENGINES, MeasuredRow, Prediction, Predictions
from trainmem.results.published import predictions_for

__all__ = ["Ask", "predict"]

Ask = Callable[[TrainingJob, str], Prediction]


def ask_engine(job: TrainingJob, engine: str) -> Prediction:
    """One engine's answer. A job that the engine does not know is an answer too: its error."""
    from trainmem.estimate import Engine, estimate

    try:
        answer = estimate(job, engine=cast(Engine, engine))
    except (JobError, NotImplementedError) as error:
        return Prediction(error=str(error))
    if answer.engine != engine:
        # The tape answers what it does not know with the whiteboard's sum; that is no answer of the tape.
        return Prediction(error=answer.warnings[-1] if answer.warnings else f"answered by {answer.engine}")
    return Prediction(
        peak_allocated_bytes=answer.peak_allocated_bytes, peak_reserved_bytes=answer.peak_reserved_bytes
    )


def predict(
    rows: Iterable[MeasuredRow],
    *,
    engines: Iterable[str] = ENGINES,
    known: Predictions | None = None,
    ask: Ask = ask_engine,
) -> Predictions:
    """Predictions for ``rows``. What ``known`` holds of engines that are not asked is kept."""
    asked = tuple(engines)
    answers: dict[str, Mapping[str, Prediction]] = {}
    for row in rows:
        if row.job is None or row.kind != "step" or row.outcome != "ok":
            continue
        before = dict(known.of_row.get(row.id, {})) if known is not None else {}
        answers[row.id] = before | {engine: ask(row.job, engine) for engine in asked}
    return predictions_for(rows, answers, version=trainmem.__version__)
