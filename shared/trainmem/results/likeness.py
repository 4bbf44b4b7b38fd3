"""Which measured rows a job resembles, and how wrong the prediction was there."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from statistics import median

from trainmem.job import JobError, TrainingJob
from trainmem.model.catalogue import find

__all__ = ["TRAITS", "Support", "error_text", "support", "traits", "typical_error"]

TRAITS = (
    "precision",
    "attention",
    "family",
    "checkpointing",
    "adapters",
    "sharding",
    "loss",
    "optimizer",
)
"""What decides which operations run, from what moves the error of a prediction most to what moves it
least."""

_FEWEST_ROWS = 3
"""A median of fewer rows is an anecdote; the search then gives up the last trait and looks wider."""

_NOTHING_KNOWN = 1.0
_LEAST_SHOWN = 1e-4


@dataclass(frozen=True, kw_only=True, slots=True)
class Support:
    """The rows behind a `typical_error`: the median of their errors, how many, and the traits they share."""

    error: float
    rows: int
    shared_traits: tuple[str, ...]


def _family(job: TrainingJob) -> str:
    if job.config is not None:
        return str(job.config.get("model_type", ""))
    try:
        return find(job.model or "").family
    except JobError:
        return ""


def traits(job: TrainingJob) -> tuple[str, ...]:
    """The job's value for each of `TRAITS`."""
    adapters = "none" if job.lora is None else f"lora on {job.base_quantization}"
    return (
        job.precision,
        job.attention,
        _family(job),
        job.checkpointing,
        adapters,
        job.sharding.mode,
        job.loss,
        job.optimizer,
    )


@cache
def _medians(engine: str) -> dict[tuple[str, ...], tuple[float, int]]:
    # Imported here because published rows are read with this module's traits.
    from trainmem.results.published import predictions

    known = predictions()
    groups: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for row_id, values in known.traits_of_row.items():
        error = known.error(row_id, engine)
        if error is not None:
            for length in range(len(values) + 1):
                groups[values[:length]].append(abs(error))
    return {key: (median(errors), len(errors)) for key, errors in groups.items()}


def support(job: TrainingJob, engine: str = "tape") -> Support:
    """The published rows nearest to ``job``: those that share its first traits, as many as leave three
    rows."""
    known = _medians(engine)
    values = traits(job)
    for length in range(len(values), -1, -1):
        error, rows = known.get(values[:length], (_NOTHING_KNOWN, 0))
        if rows >= _FEWEST_ROWS:
            return Support(error=error, rows=rows, shared_traits=TRAITS[:length])
    return Support(error=_NOTHING_KNOWN, rows=0, shared_traits=())


def error_text(error: float) -> str:
    """A `typical_error` as every page and command writes it: ``"1.25%"``, ``"under 0.01%"``."""
    if error >= _NOTHING_KNOWN:
        return "unknown: no measured step is like it yet"
    return f"{error:.2%}" if error >= _LEAST_SHOWN else f"under {_LEAST_SHOWN:.2%}"


def typical_error(job: TrainingJob, engine: str = "tape") -> float:
    """How far off the engine was, as a share of the measured peak, on the published rows nearest to
    ``job``.

    Equation: median over those rows of |predicted / measured - 1|, allocated peaks. Units: a share, 0.002
    is 0.2%. Source: the rows and predictions bundled with the package. Leaves out: sizes; a small model's
    fixed costs weigh more. Known error: none of its own, but three rows of one machine are the least it is
    content with. 1.0 where nothing was published.
    """
    return support(job, engine).error
