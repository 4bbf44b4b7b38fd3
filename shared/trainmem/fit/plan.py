"""The plan: the shortest lists of levers that make a job fit, in the order of what they change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainmem.allocator import TURN_ON_EXPANDABLE_SEGMENTS
from trainmem.capacity import SumAnswer, capacity_report, needed_bytes, sum_answer
from trainmem.estimate import Detail, Engine, Estimate
from trainmem.fit.lists import levers_that_fit
from trainmem.fit.outcome import Outcome, answer, can_fit, held_alone, limit_of, outcome
from trainmem.fit.room import Room
from trainmem.fit.steps import PlanStep, Steps, combined_share
from trainmem.job import TrainingJob
from trainmem.recording import without_collections

__all__ = ["EXPANDABLE", "MOST_PLANS", "Plan", "PlanStep", "Plans", "plans"]

EXPANDABLE = TURN_ON_EXPANDABLE_SEGMENTS
MOST_PLANS = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Levers that together make the job fit. ``tight``: see `Outcome`.

    ``peak_bytes`` is what tensors take at the new peak: the old one less what the steps save. ``held_bytes``
    adds what the allocator rounds up and keeps, None where it was not replayed.
    """

    steps: tuple[PlanStep, ...]
    job: TrainingJob
    peak_bytes: int
    held_bytes: int | None
    tight: bool
    sum_answer: SumAnswer | None = None

    @property
    def saved_bytes(self) -> int:
        """Of all levers together."""
        return sum(step.saved_bytes for step in self.steps)

    @property
    def step_time_share(self) -> float:
        """See `combined_share`."""
        return combined_share(self.steps)

    def to_json(self) -> dict[str, Any]:
        """For the command line."""
        return {
            "levers": [step.to_json() for step in self.steps],
            "saved_bytes": self.saved_bytes,
            "peak_allocated_bytes": self.peak_bytes,
            "step_time_share": self.step_time_share,
            "held_bytes": self.held_bytes or self.peak_bytes,
            "tight": self.tight,
            "sum_answer": self.sum_answer,
            "job": self.job.to_json(),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Plans:
    """A job's state on a device and the plans that mend it; none are needed where it ``fits``.

    ``engine`` is the whiteboard where the tape does not know the model, and all of this its sum.
    ``peak_bytes`` is what tensors take at the job's peak, from which plans save, ``held_bytes`` what the allocator
    makes of it. ``expandable``: it does not fit, but would with the allocator's ``expandable_segments:True``, which
    costs nothing and is tried before any lever.
    """

    job: TrainingJob
    room: Room
    fits: bool
    tight: bool
    expandable: bool
    engine: Engine
    peak_bytes: int
    held_bytes: int
    plans: tuple[Plan, ...]
    sum: Estimate | None = None

    def to_json(self) -> dict[str, Any]:
        """For the command line."""
        return {
            "fits": self.fits,
            "tight": self.tight,
            "fits_with_expandable_segments": self.expandable,
            "engine": self.engine,
            "peak_allocated_bytes": self.peak_bytes,
            "held_bytes": self.held_bytes,
            "limit_bytes": self.room.limit_bytes,
            "plans": [plan.to_json() for plan in self.plans],
        }


def plans(job: TrainingJob, room: Room, detail: Detail = "exact") -> Plans:
    """The plans for ``job``, by what they cost: first nothing but time, last more machines.

    "exact" asks the allocator about every list that the fast peak lets through. Savings are differences of the
    fast peak, which need no allocator, so that they add up to the difference between before and after.
    """
    with without_collections():
        return _plans(job.with_(device=room.device.name), room, detail)


def _plans(job: TrainingJob, room: Room, detail: Detail) -> Plans:
    state = outcome(job, room, detail)
    quick = answer(job, "fast")
    found = () if state.fits else levers_that_fit(job, room, detail, most=MOST_PLANS)
    return Plans(
        job=job,
        room=room,
        fits=state.fits,
        tight=state.tight,
        expandable=not state.fits and detail == "exact" and _fits_expandable(job, room),
        engine=quick.engine,
        peak_bytes=quick.peak_allocated_bytes,
        held_bytes=_held(job, state, room, detail),
        plans=tuple(_plan(steps, room, detail) for steps in found),
        sum=answer(job, detail) if quick.is_sum else None,
    )


def _plan(steps: Steps, room: Room, detail: Detail) -> Plan:
    job = steps[-1].job
    state, quick = outcome(job, room, detail), answer(job, "fast")
    return Plan(
        steps=steps,
        job=job,
        peak_bytes=quick.peak_allocated_bytes,
        held_bytes=state.reserved_bytes,
        tight=state.tight,
        sum_answer=sum_answer(answer(job, detail), limit_of(job, room)) if quick.is_sum else None,
    )


def _held(job: TrainingJob, state: Outcome, room: Room, detail: Detail) -> int:
    """What the allocator would hold if it could; of a job whose tensors alone are too many, the tensors."""
    if state.reserved_bytes is not None and not state.tight:
        return state.reserved_bytes
    if detail == "exact" and can_fit(job, room):
        return held_alone(job)
    return needed_bytes(answer(job, "fast"))


def _fits_expandable(job: TrainingJob, room: Room) -> bool:
    if not can_fit(job, room) or answer(job, "fast").is_sum:
        return False
    return capacity_report(job, room.usable_bytes).answer == "fits_with_expandable_segments"
