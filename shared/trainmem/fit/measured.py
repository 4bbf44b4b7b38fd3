"""Published rows beside predictions: what was really measured of a job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

from trainmem.job import JobError, TrainingJob
from trainmem.model import resolve
from trainmem.model.catalogue import find
from trainmem.results import MeasuredRow, published_rows_where, throughput_doubt
from trainmem.results.plausible import device_of_gpu
from trainmem.results.row import seconds_of

__all__ = ["canonical", "largest_batch_row", "rows_of", "timed_steps"]


@lru_cache(maxsize=4096)
def canonical(job: TrainingJob) -> TrainingJob:
    """``job`` as a key: the same for every device, every name of its model, and that model's own config."""
    name = _known_name(job.model)
    if name is None:
        return replace(job, device="h200")
    named = replace(job, model=name, config=None, device="h200")
    if job.config is None or job.config == find(name).config:
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
def _of_counts(micro_batch: int, sequence_length: int) -> dict[TrainingJob, tuple[MeasuredRow, ...]]:
    """The rows of one micro batch and length by their jobs as keys; others need not be read."""

    def is_its(data: Mapping[str, Any]) -> bool:
        if not _is_step(data):
            return False
        job = data["job"]
        return bool(job["micro_batch"] == micro_batch and job["sequence_length"] == sequence_length)

    counts = {"micro_batch": micro_batch, "sequence_length": sequence_length}
    saying = [rf'"{name}":\s*{value}\b' for name, value in counts.items()]
    return _by_key((_job_of(row), row) for row in published_rows_where(is_its, saying=saying))


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
    return _of_counts(key.micro_batch, key.sequence_length).get(key, ())


@cache
def _largest_batches() -> dict[TrainingJob, tuple[MeasuredRow, ...]]:
    return _by_key(
        (_job_of(row).with_(micro_batch=1), row)
        for row in published_rows_where(
            lambda data: data.get("kind") == "largest_batch", saying=[r'"kind":\s*"largest_batch"']
        )
        if row.measured.get("proved")
    )


def largest_batch_row(job: TrainingJob, device: str) -> MeasuredRow | None:
    """The proved measurement of the job's largest micro batch on that very device, whole."""
    for row in _largest_batches().get(canonical(job.with_(micro_batch=1)), ()):
        known = device_of_gpu(str(row.environment.get("gpu")))
        if known is not None and known.name == device and not row.environment.get("capacity_text"):
            return row
    return None


@cache
def timed_steps() -> tuple[tuple[TrainingJob, MeasuredRow], ...]:
    """Every measured step whose seconds say something, with its job as a key."""
    timed = published_rows_where(lambda data: _is_step(data) and bool(seconds_of(data)))
    found = _by_key((_job_of(row), row) for row in timed if not throughput_doubt(row))
    return tuple((job, row) for job, rows in found.items() for row in rows)
