"""Rent or own: the same job on one to eight rented GPUs, and the smallest single device that runs it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from trainmem.capacity import SumAnswer, needed_bytes, sum_answer
from trainmem.device import devices
from trainmem.estimate import Detail, Estimate
from trainmem.fit.floor import StepFloor, step_floor
from trainmem.fit.outcome import answer, can_fit, outcome
from trainmem.fit.room import Room, room
from trainmem.job import JobError, Sharding, TrainingJob

__all__ = ["RENTED", "Offer", "RentOrOwn", "rent_or_own"]

RENTED = "h100-80gb"
COUNTS = (1, 2, 4, 8)


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """One way to run the job: how many of which device, what each must hold, and the step's floor.

    ``job`` is the job of one rank. Ranks share the batch: where micro batches can be dealt out, each rank
    accumulates fewer; else the batch of a step grows with them. Under FSDP2 autocast gives way to its own mixed
    precision, as in the plan's lever.
    """

    room: Room
    count: int
    job: TrainingJob
    estimate: Estimate
    fits: bool
    tight: bool
    floor: StepFloor

    @property
    def needed_bytes(self) -> int:
        """What the allocator holds; where that is `tight`, what it cannot do without."""
        return self.estimate.peak_allocated_bytes if self.tight else needed_bytes(self.estimate)

    @property
    def sum_answer(self) -> SumAnswer | None:
        """What an `Estimate.is_sum` says; None of a replay."""
        return sum_answer(self.estimate, self.room.limit_bytes) if self.estimate.is_sum else None

    @property
    def tokens_per_second(self) -> float:
        """At the floor: no more than this."""
        return self.floor.tokens / self.floor.seconds

    def to_json(self) -> dict[str, Any]:
        """For the command line."""
        return {
            "device": self.room.device.name,
            "count": self.count,
            "fits": self.fits,
            "tight": self.tight,
            "sum_answer": self.sum_answer,
            "held_bytes": needed_bytes(self.estimate),
            "needed_bytes": self.needed_bytes,
            "limit_bytes": self.room.limit_bytes,
            "step_floor_seconds": self.floor.seconds,
            "tokens_per_step": self.floor.tokens,
            "most_tokens_per_second": self.tokens_per_second,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class RentOrOwn:
    """Offers of rented GPUs, and the smallest device of the list that runs the job alone, if any does.

    ``changed``: no number of rented GPUs holds the job as it is, so that these are of the job with checkpointing;
    ``smallest_as_set`` is the smallest device without that change.
    """

    rented: tuple[Offer, ...]
    smallest: Offer | None
    smallest_as_set: Offer | None
    changed: bool

    @property
    def offers(self) -> tuple[Offer, ...]:
        """All of them, each once: the smallest device may be the rented one."""
        alone = self.smallest
        known = alone is None or alone.room.device == self.rented[0].room.device
        return self.rented if known or alone is None else (*self.rented, alone)

    @property
    def changed_in_words(self) -> str:
        """To follow a title."""
        return ", with checkpointing (as set, it fits none of the rented ones)" if self.changed else ""

    def to_json(self) -> dict[str, Any]:
        """For the command line."""
        return {
            "rented": [offer.to_json() for offer in self.rented],
            "smallest_device": self.smallest.to_json() if self.smallest else None,
            "smallest_device_as_set": self.smallest_as_set.to_json() if self.smallest_as_set else None,
            "with_checkpointing": self.changed,
        }


def rent_or_own(job: TrainingJob, detail: Detail = "exact") -> RentOrOwn:
    """What ``job`` needs on 1, 2, 4 and 8 H100s under FSDP2, and the smallest single device that runs it.

    A job that fits no number of H100s as it is, is asked about with checkpointing. Smallest by usable memory. Leaves
    out: prices, which change from week to week.
    """
    alone = job.with_(sharding=Sharding())
    found = _offers(alone, detail)
    if alone.checkpointing != "full" and not any(offer.fits for offer in found.rented):
        checkpointed = _offers(alone.with_(checkpointing="full"), detail)
        return replace(checkpointed, smallest_as_set=found.smallest, changed=True)
    return found


def _offers(alone: TrainingJob, detail: Detail) -> RentOrOwn:
    smallest = _smallest(alone, detail)
    return RentOrOwn(
        rented=tuple(_offer(_dealt(alone, count), room(RENTED), count, detail) for count in COUNTS),
        smallest=smallest,
        smallest_as_set=smallest,
        changed=False,
    )


def _dealt(job: TrainingJob, count: int) -> TrainingJob:
    if count == 1:
        return job
    share = job.accumulation // count if job.accumulation % count == 0 else job.accumulation
    precision = "fsdp_mp_bf16" if job.precision == "amp_bf16" else job.precision
    return job.with_(
        accumulation=share,
        precision=precision,
        sharding=Sharding(mode="fsdp2", data_parallel=count),
    )


def _offer(job: TrainingJob, at: Room, count: int, detail: Detail) -> Offer:
    job = job.with_(device=at.device.name)
    state = outcome(job, at, detail)
    return Offer(
        room=at,
        count=count,
        job=job,
        # Where the tensors alone would fit, what the allocator makes of them is the reason why they do not.
        estimate=answer(job, detail if can_fit(job, at) else "fast"),
        fits=state.fits,
        tight=state.tight,
        floor=step_floor(job),
    )


def _smallest(job: TrainingJob, detail: Detail) -> Offer | None:
    rooms = sorted((room(found.name) for found in devices() if found.cuda), key=lambda at: at.limit_bytes)
    for at in rooms:
        try:
            placed = job.with_(device=at.device.name)
            if outcome(placed, at, detail).fits:
                offer = _offer(placed, at, 1, detail)
                if offer.sum_answer in (None, "probably_fits"):
                    return offer
        except JobError:
            continue
    return None
