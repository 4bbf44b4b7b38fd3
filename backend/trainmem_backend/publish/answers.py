"""Every engine's answer to every measured job, made when rows are published and not when they are
measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

import trainmem
from trainmem.job import JobError, TrainingJob
from trainmem.results import ENGINES, MeasuredRow, Prediction, Predictions
from trainmem.results.published import predictions_for

__all__ = ["Ask", "predict"]

Ask = Callable[[TrainingJob, str], Prediction]

_SAVED_EVERY = 10


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
    rows: Sequence[MeasuredRow],
    *,
    engines: Iterable[str] = ENGINES,
    known: Predictions | None = None,
    missing_only: bool = False,
    ask: Ask = ask_engine,
    save: Callable[[Predictions], None] = lambda _: None,
) -> Predictions:
    """Predictions for ``rows``; a job that several rows measured is asked once.

    What ``known`` holds of engines that are not asked is kept, and with ``missing_only`` every answer that it
    holds. ``save`` gets the predictions so far from time to time: tracing hundreds of jobs takes a while.
    """
    asked = tuple(engines)
    answers: dict[str, Mapping[str, Prediction]] = dict(known.of_row) if known is not None else {}
    fresh: dict[tuple[str, str], Prediction] = {}

    def answer(job: TrainingJob, engine: str) -> Prediction:
        name = (repr(job), engine)
        if name not in fresh:
            fresh[name] = ask(job, engine)
            if len(fresh) % _SAVED_EVERY == 0:
                save(predictions_for(rows, answers, version=trainmem.__version__))
        return fresh[name]

    for row in rows:
        if row.job is None or row.kind != "step" or row.outcome != "ok":
            continue
        before = dict(answers.get(row.id, {}))
        wanted = [
            engine
            for engine in asked
            if not (missing_only and engine in before and before[engine].error is None)
        ]
        answers[row.id] = before | {engine: answer(row.job, engine) for engine in wanted}
    return predictions_for(rows, answers, version=trainmem.__version__)
