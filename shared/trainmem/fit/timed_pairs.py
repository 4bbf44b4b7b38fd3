"""Timed steps that differ by one lever, from which prices come: worked out beforehand, in `timed_pairs.json`.

To find them every timed row is read and every lever pulled on it, which takes longer than a plan may.
`python -m tools.timed_pairs` writes the file; a test works them out again.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

from trainmem.fit.measured import timed_steps
from trainmem.job import Checkpointing, JobError, Optimizer, Precision, TrainingJob
from trainmem.levers import ALL_LEVERS, MemoryLever
from trainmem.model import resolve
from trainmem.results.plausible import device_of_gpu

__all__ = ["FILE", "SCHEMA", "TimedPair", "found_pairs", "timed_pairs", "work_of"]

SCHEMA = "trainmem.timed-pairs/1"
FILE = "timed_pairs.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedPair:
    """Two timed steps of one machine that differ by a lever, pulled ``times`` times.

    ``share``: the change of step time. ``work``: parameters x tokens of a micro batch after it. The model's
    ``parameters``, the length and the recipe are those of the step before it; ``adapters``: whether it has any.
    """

    share: float
    times: int
    work: int
    device: str | None
    source: str
    parameters: int
    sequence_length: int
    adapters: bool
    precision: Precision
    optimizer: Optimizer
    checkpointing: Checkpointing


@cache
def _published() -> Mapping[str, tuple[TimedPair, ...]]:
    text = resources.files("trainmem").joinpath("fit", FILE).read_text(encoding="utf-8")
    data = json.loads(text)
    if data.get("schema") != SCHEMA:
        raise ValueError(f"schema: {data.get('schema')!r} is not {SCHEMA}")
    return {key: tuple([TimedPair(**pair) for pair in pairs]) for key, pairs in data["levers"].items()}


def timed_pairs(key: str) -> tuple[TimedPair, ...]:
    """The pairs of a lever, by its key; none where no step was timed with and without it."""
    return _published().get(key, ())


def work_of(job: TrainingJob) -> int:
    """Parameters x tokens of a micro batch."""
    return resolve(job).architecture.parameter_count * job.micro_batch * job.sequence_length


def found_pairs(key: str) -> tuple[TimedPair, ...]:
    """The published timed steps that differ by this lever alone; several devices are timed nowhere yet."""
    lever = next(lever for lever in ALL_LEVERS if lever.key == key)
    return tuple(
        pair
        for machine, steps in _timed().items()
        for before in steps
        for pair in _pairs_of(lever, before, steps, machine)
    )


@cache
def _timed() -> Mapping[str, Mapping[TrainingJob, float]]:
    """Seconds of every timed step, by machine; of several runs the quickest, as a busy host only adds to it."""
    timed: dict[str, dict[TrainingJob, float]] = defaultdict(dict)
    for job, row in timed_steps():
        if row.step_seconds and row.outcome == "ok":
            known = timed[row.machine].get(job, row.step_seconds)
            timed[row.machine][job] = min(known, row.step_seconds)
    return timed


def _pairs_of(
    lever: MemoryLever, before: TrainingJob, steps: Mapping[TrainingJob, float], machine: str
) -> Iterator[TimedPair]:
    known, times = device_of_gpu(machine), 0
    after = _pulled(lever, before)
    while after is not None and after.sharding == before.sharding:
        times += 1
        timed = after if after in steps else _without_rounding(after)
        if timed in steps:
            plain = "" if timed == after else ", timed without the rounding"
            yield TimedPair(
                share=steps[timed] / steps[before] - 1,
                times=times,
                work=work_of(after),
                device=known.name if known else None,
                source=(
                    f"{before.model or 'a config'} x {before.micro_batch} x {before.sequence_length:,}, "
                    f"{machine.removeprefix('NVIDIA ')}: {steps[before]:.3g} s to {steps[timed]:.3g} s{plain}"
                ),
                parameters=resolve(before).architecture.parameter_count,
                sequence_length=before.sequence_length,
                adapters=before.lora is not None,
                precision=before.precision,
                optimizer=before.optimizer,
                checkpointing=before.checkpointing,
            )
        after = _pulled(lever, after) if lever.repeats else None


def _pulled(lever: MemoryLever, job: TrainingJob) -> TrainingJob | None:
    """No lever moves what `canonical` settles, so that its answer is such a key again."""
    try:
        return lever.pull(job)
    except JobError:
        return None


def _without_rounding(job: TrainingJob) -> TrainingJob:
    return replace(job, precision="bf16") if job.precision == "bf16_stochastic" else job
