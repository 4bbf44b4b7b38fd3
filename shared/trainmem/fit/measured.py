"""Published rows beside predictions: what was really measured of a job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

from trainmem.job import JobError, TrainingJob
from trainmem.model import resolve
from trainmem.model.catalogue import find
from trainmem.results import MeasuredRow, published_rows_where
from trainmem.results.plausible import device_of_gpu

__all__ = ["canonical", "largest_batch_row", "rows_of", "step_rows"]


@lru_cache(maxsize=4096)
def canonical(job: TrainingJob) -> TrainingJob:
    """``job`` as a key: the same for every device, every name of its model, and that model's own config."""
    name = _known_name(job.model)
    if name is None:
        return replace(job, device="h200")
    named = replace(job, model=name, config=None, device="h200")
    if job.config is None:
        return named
    try:
        same = resolve(named).architecture == resolve(job).architecture
    except JobError:
        # A config may have more positions than the model of its name.
        same = False
    return named if same else replace(job, model=name, device="h200")


@cache
def _known_name(model: str | None) -> str | None:
    try:
        return find(model or "").name
    except JobError:
        return None


_ENDED = ("ok", "oom")
"""Outcomes that say something of the job; the others were stopped, or not run at all."""


def _is_step(data: Mapping[str, Any]) -> bool:
    """Whether a row, as JSON, is a measured step that ended."""
    return data.get("kind", "step") == "step" and data.get("outcome", "ok") in _ENDED


def _job_of(row: MeasuredRow) -> TrainingJob:
    assert row.job is not None
    return row.job


@cache
def _of_model(model: str | None) -> dict[TrainingJob, tuple[MeasuredRow, ...]]:
    """The rows of one model by their jobs as keys; those of others, and their configs, need not be read."""

    def is_its(data: Mapping[str, Any]) -> bool:
        name = data["job"].get("model") if _is_step(data) else None
        return _is_step(data) and (_known_name(name) or name) == model

    return _by_key((_job_of(row), row) for row in published_rows_where(is_its))


def _by_key(
    pairs: Iterable[tuple[TrainingJob, MeasuredRow]],
) -> dict[TrainingJob, tuple[MeasuredRow, ...]]:
    found: dict[TrainingJob, list[MeasuredRow]] = defaultdict(list)
    for job, row in pairs:
        found[canonical(job)].append(row)
    return {job: tuple(rows) for job, rows in found.items()}


def rows_of(job: TrainingJob) -> tuple[MeasuredRow, ...]:
    """The measured steps of exactly this job, on whatever machine, however they ended."""
    key = canonical(job)
    return _of_model(key.model).get(key, ())


@cache
def _largest_batches() -> dict[TrainingJob, tuple[MeasuredRow, ...]]:
    return _by_key(
        (_job_of(row).with_(micro_batch=1), row)
        for row in published_rows_where(lambda data: data.get("kind") == "largest_batch")
        if row.measured.get("proved")
    )


def largest_batch_row(job: TrainingJob, device: str) -> MeasuredRow | None:
    """The proved measurement of the job's largest micro batch on that very device, whole."""
    for row in _largest_batches().get(canonical(job.with_(micro_batch=1)), ()):
        known = device_of_gpu(str(row.environment.get("gpu")))
        if known is not None and known.name == device and not row.environment.get("capacity_text"):
            return row
    return None


def step_rows() -> Iterator[tuple[TrainingJob, MeasuredRow]]:
    """Every measured step with its job as a key."""
    found = ((_job_of(row), row) for row in published_rows_where(_is_step))
    for job, rows in _by_key(found).items():
        for row in rows:
            yield job, row
