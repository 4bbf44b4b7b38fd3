"""What a lever costs in step time: from published timings where there are any, else from the step's floor."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from trainmem.device import Device
from trainmem.fit.floor import step_floor
from trainmem.fit.measured import timed_steps
from trainmem.job import JobError, TrainingJob
from trainmem.levers import ALL_LEVERS, MemoryLever
from trainmem.model import resolve
from trainmem.results.plausible import device_of_gpu

__all__ = ["Price", "price"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Price:
    """A change of step time: ``share`` +0.25 is a quarter longer, -0.1 a tenth shorter.

    "measured": the same change timed on a published machine, ``source`` says which rows; "computed": the
    change of the floor, so of the part that arithmetic and bytes explain.
    """

    share: float
    basis: Literal["measured", "computed"]
    source: str

    def to_json(self) -> dict[str, Any]:
        """For the command line."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pair:
    """Two timed steps that differ by a lever, pulled ``times`` times.

    ``work``: parameters x tokens of a micro batch after it.
    """

    before: TrainingJob
    share: float
    times: int
    work: int
    device: str | None
    source: str
    parameters: int


def price(lever: MemoryLever, before: TrainingJob, after: TrainingJob, on: Device) -> Price:
    """The price of going from ``before`` to ``after``, which ``lever`` was pulled for.

    Of several timed pairs the nearest counts: the same device, as many pulls, the same recipe, then the size;
    of several runs of one job the quickest. Where none was timed, the change of `step_floor`.
    """
    pairs = _pairs(lever.key)
    if lever.key == "micro_batch":
        # Small micro batches of small models leave a GPU idle: what that costs says nothing of larger ones.
        work = _work(after)
        pairs = tuple(pair for pair in pairs if work <= 2 * pair.work)
    if lever.key == "precision":
        # Weights that are trained in 16 bit and a frozen base that is only read in it are two changes.
        pairs = tuple(pair for pair in pairs if bool(pair.before.lora) == bool(before.lora))
    if pairs:
        times, size = _times(lever, before, after), resolve(before).architecture.parameter_count

        def distance(pair: _Pair) -> tuple[float, ...]:
            other = pair.before
            return (
                pair.device != on.name,
                abs(math.log2(pair.times / times)),
                bool(other.lora) != bool(before.lora),
                other.precision != before.precision,
                other.optimizer != before.optimizer,
                other.checkpointing != before.checkpointing,
                abs(math.log(pair.parameters / size))
                + abs(math.log(other.sequence_length / before.sequence_length)),
            )

        nearest = min(pairs, key=distance)
        share, source = nearest.share, nearest.source
        if lever.key == "micro_batch" and times != nearest.times:
            # Every further micro batch launches its kernels and adds its gradients once more.
            timed = 2**nearest.times - 1
            share *= (2**times - 1) / timed
            source += f" for {timed} more micro batches"
        return Price(share=share, basis="measured", source=source)
    old, new = step_floor(before, on), step_floor(after, on)
    share = new.seconds / old.seconds - 1
    if abs(share) < 0.0005:
        return Price(share=0.0, basis="computed", source="the same arithmetic and bytes")
    name = on.title.removeprefix("NVIDIA ")
    return Price(
        share=share,
        basis="computed",
        source=f"floor {old.seconds:.3g} s to {new.seconds:.3g} s on the {name}",
    )


def _work(job: TrainingJob) -> int:
    return resolve(job).architecture.parameter_count * job.micro_batch * job.sequence_length


def _times(lever: MemoryLever, before: TrainingJob, after: TrainingJob) -> int:
    times, job = 0, lever.pull(before)
    while job is not None:
        times += 1
        if job == after or not lever.repeats:
            break
        job = lever.pull(job)
    return max(1, times)


@cache
def _timed() -> Mapping[str, Mapping[TrainingJob, float]]:
    """Seconds of every timed step, by machine; of several runs the quickest, as a busy host only adds to it."""
    timed: dict[str, dict[TrainingJob, float]] = defaultdict(dict)
    for job, row in timed_steps():
        if row.step_seconds and row.outcome == "ok":
            known = timed[row.machine].get(job, row.step_seconds)
            timed[row.machine][job] = min(known, row.step_seconds)
    return timed


@cache
def _pairs(key: str) -> tuple[_Pair, ...]:
    """The timed steps that differ by this lever alone, on one machine; several devices are timed nowhere yet."""
    lever = next(lever for lever in ALL_LEVERS if lever.key == key)
    return tuple(
        pair
        for machine, steps in _timed().items()
        for before in steps
        for pair in _pairs_of(lever, before, steps, machine)
    )


def _pairs_of(
    lever: MemoryLever, before: TrainingJob, steps: Mapping[TrainingJob, float], machine: str
) -> Iterator[_Pair]:
    known, times = device_of_gpu(machine), 0
    after = _pulled(lever, before)
    while after is not None and after.sharding == before.sharding:
        times += 1
        timed = after if after in steps else _without_rounding(after)
        if timed in steps:
            plain = "" if timed == after else ", timed without the rounding"
            yield _Pair(
                before=before,
                share=steps[timed] / steps[before] - 1,
                times=times,
                work=_work(after),
                device=known.name if known else None,
                source=(
                    f"{before.model or 'a config'} x {before.micro_batch} x {before.sequence_length:,}, "
                    f"{machine.removeprefix('NVIDIA ')}: {steps[before]:.3g} s to {steps[timed]:.3g} s{plain}"
                ),
                parameters=resolve(before).architecture.parameter_count,
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
