"""What a lever costs in step time: from published timings where there are any, else from the step's floor."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from trainmem.device import Device
from trainmem.fit.floor import step_floor
from trainmem.fit.timed_pairs import TimedPair, timed_pairs, work_of
from trainmem.job import TrainingJob
from trainmem.levers import MemoryLever
from trainmem.model import resolve

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


def price(lever: MemoryLever, before: TrainingJob, after: TrainingJob, on: Device) -> Price:
    """The price of going from ``before`` to ``after``, which ``lever`` was pulled for.

    Of several timed pairs the nearest counts: the same device, as many pulls, the same recipe, then the size;
    of several runs of one job the quickest. Where none was timed, the change of `step_floor`.
    """
    pairs = timed_pairs(lever.key)
    if lever.key == "micro_batch":
        # Small micro batches of small models leave a GPU idle: what that costs says nothing of larger ones.
        work = work_of(after)
        pairs = tuple(pair for pair in pairs if work <= 2 * pair.work)
    if lever.key == "precision":
        # Weights that are trained in 16 bit and a frozen base that is only read in it are two changes.
        pairs = tuple(pair for pair in pairs if pair.adapters == bool(before.lora))
    if pairs:
        times, size = _times(lever, before, after), resolve(before).architecture.parameter_count

        def distance(other: TimedPair) -> tuple[float, ...]:
            return (
                other.device != on.name,
                abs(math.log2(other.times / times)),
                other.adapters != bool(before.lora),
                other.precision != before.precision,
                other.optimizer != before.optimizer,
                other.checkpointing != before.checkpointing,
                abs(math.log(other.parameters / size))
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


def _times(lever: MemoryLever, before: TrainingJob, after: TrainingJob) -> int:
    times, job = 0, lever.pull(before)
    while job is not None:
        times += 1
        if job == after or not lever.repeats:
            break
        job = lever.pull(job)
    return max(1, times)
