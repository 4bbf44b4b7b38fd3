"""Levers pulled one after the other: what each saves of the peak, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations
from typing import Any

from trainmem.fit.outcome import answer
from trainmem.fit.prices import Price, price
from trainmem.fit.room import Room
from trainmem.flags import changed_flags
from trainmem.job import TrainingJob
from trainmem.levers import ALL_LEVERS, Mathematics, MemoryLever

__all__ = ["LEAST_SAVED", "Choice", "PlanStep", "Steps", "combined_share", "steps_of"]

LEAST_SAVED = 0.002
"""A lever that saves less of the peak than this share has no place in a plan."""

_ORDER = {lever.key: at for at, lever in enumerate(ALL_LEVERS)}


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanStep:
    """One lever of a plan: the job after it, what it saves of the peak, and what it costs.

    ``flags`` are those of the command line that pull it, on the job before it.
    """

    lever: MemoryLever
    job: TrainingJob
    saved_bytes: int
    price: Price
    name: str
    flags: str
    mathematics: Mathematics

    def to_json(self) -> dict[str, Any]:
        """For the command line."""
        return {
            "lever": self.lever.key,
            "name": self.name,
            "flags": self.flags,
            "saved_bytes": self.saved_bytes,
            "mathematics": self.mathematics,
            "step_time": self.price.to_json(),
        }


Steps = tuple[PlanStep, ...]


def combined_share(steps: Steps) -> float:
    """Change of the step's time by all levers, as if each kept its own price beside the others."""
    product = 1.0
    for step in steps:
        product *= 1 + step.price.share
    return product - 1


@dataclass(frozen=True, slots=True)
class Choice:
    """Levers, each with how often it is pulled, in the order of `ALL_LEVERS`."""

    pulls: tuple[tuple[MemoryLever, int], ...]

    @property
    def keys(self) -> frozenset[str]:
        """Of the levers."""
        return frozenset(lever.key for lever, _ in self.pulls)

    def __len__(self) -> int:
        return len(self.pulls)

    def with_lever(self, lever: MemoryLever, times: int = 1) -> Choice:
        """One lever more, or another number of pulls of one that is here."""
        others = [pull for pull in self.pulls if pull[0] is not lever]
        return Choice(tuple(sorted([*others, (lever, times)], key=lambda pull: _ORDER[pull[0].key])))

    def smaller(self) -> Choice | None:
        """The micro batch pulled once more; None where it is not among them."""
        for lever, times in self.pulls:
            if lever.key == "micro_batch":
                return self.with_lever(lever, times + 1)
        return None

    def apply(self, job: TrainingJob) -> TrainingJob | None:
        """The job after all of them; None where one does not apply."""
        changed: TrainingJob | None = job
        for lever, times in self.pulls:
            changed = _pulled(lever, times, changed) if changed else None
        return changed

    def time(self, job: TrainingJob, room: Room) -> float:
        """The step's time after them over that before."""
        product = 1.0
        for lever, times in self.pulls:
            after = _pulled(lever, times, job)
            if after is not None:
                product *= 1 + price(lever, job, after, room.device).share
                job = after
        return product


def steps_of(choice: Choice, job: TrainingJob, room: Room) -> Steps | None:
    """The levers in an order in which each saves something, because the peak moves; None where there is none."""
    for order in permutations(choice.pulls):
        steps = tuple(_in_order(order, job, room))
        if len(steps) == len(order):
            return steps
    return None


def _in_order(order: tuple[tuple[MemoryLever, int], ...], job: TrainingJob, room: Room) -> Iterator[PlanStep]:
    """The steps up to the first that saves nothing."""
    for lever, times in order:
        after = _pulled(lever, times, job)
        if after is None:
            return
        peak = answer(job, "fast").peak_allocated_bytes
        saved = peak - answer(after, "fast").peak_allocated_bytes
        if saved < LEAST_SAVED * peak:
            return
        yield PlanStep(
            lever=lever,
            job=after,
            saved_bytes=saved,
            price=price(lever, job, after, room.device),
            name=_named(lever, job, after),
            flags=changed_flags(job, after),
            mathematics=lever.changes(job, after),
        )
        job = after


def _pulled(lever: MemoryLever, times: int, job: TrainingJob) -> TrainingJob | None:
    changed: TrainingJob | None = job
    for _ in range(times):
        changed = lever.pull(changed) if changed else None
    return changed


def _named(lever: MemoryLever, before: TrainingJob, after: TrainingJob) -> str:
    if lever.key == "micro_batch":
        return (
            f"micro batch {before.micro_batch} to {after.micro_batch}, accumulation {before.accumulation} to "
            f"{after.accumulation}"
        )
    if lever.key == "sharding":
        mixed = "" if after.precision == before.precision else " with its own mixed precision"
        return f"FSDP2 over {after.sharding.data_parallel} devices{mixed}"
    return lever.describe(after)
