"""The plan: the shortest lists of levers that make a job fit, cheapest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from trainmem.allocator import TURN_ON_EXPANDABLE_SEGMENTS
from trainmem.capacity import capacity_report
from trainmem.estimate import Detail, Estimate
from trainmem.fit.outcome import answer, can_fit, held_bytes, outcome
from trainmem.fit.prices import Price, price
from trainmem.fit.room import Room
from trainmem.job import TrainingJob
from trainmem.levers import ALL_LEVERS, MemoryLever

__all__ = ["EXPANDABLE", "Plan", "PlanStep", "Plans", "plans"]

EXPANDABLE = TURN_ON_EXPANDABLE_SEGMENTS
MOST_PLANS = 6
_MOST_LEVERS = 4
_MOST_OF_A_COST = 2

_COSTS: tuple[tuple[str, ...], ...] = (
    ("attention", "zero_grad", "optimizer_fused", "micro_batch", "loss", "checkpointing"),
    ("optimizer_8bit", "precision"),
    ("lora",),
    ("qlora",),
    ("sharding",),
    ("offload",),
)
"""What a lever costs beside time, least first: nothing, numerics, trained parameters, and machines."""

_INSTEAD = {
    "optimizer_fused": {"optimizer_8bit", "lora", "qlora", "offload"},
    "optimizer_8bit": {"lora", "qlora", "offload"},
    "precision": {"lora", "qlora", "offload"},
    "lora": {"qlora", "offload"},
    "qlora": {"sharding", "offload"},
    "sharding": {"offload"},
}
"""Levers that take each other's place, or that nobody pulls together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanStep:
    """One lever of a plan: the job after it, what it saves and what it costs."""

    lever: MemoryLever
    job: TrainingJob
    saved_bytes: int
    price: Price
    name: str

    def to_json(self) -> dict[str, Any]:
        """For the command line."""
        return {
            "lever": self.lever.key,
            "name": self.name,
            "saved_bytes": self.saved_bytes,
            "mathematics": self.lever.mathematics,
            "step_time": self.price.to_json(),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Levers that together make the job fit, and none of them to spare."""

    steps: tuple[PlanStep, ...]
    job: TrainingJob
    estimate: Estimate
    tight: bool

    @property
    def saved_bytes(self) -> int:
        """Of all levers together."""
        return sum(step.saved_bytes for step in self.steps)

    @property
    def step_time_share(self) -> float:
        """Change of the step's time by all levers, as if each kept its own price beside the others."""
        product = 1.0
        for step in self.steps:
            product *= 1 + step.price.share
        return product - 1

    def to_json(self) -> dict[str, Any]:
        """For the command line."""
        return {
            "levers": [step.to_json() for step in self.steps],
            "saved_bytes": self.saved_bytes,
            "step_time_share": self.step_time_share,
            "held_bytes": held_bytes(self.estimate),
            "tight": self.tight,
            "job": self.job.to_json(),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Plans:
    """A job's state on a device and the plans that mend it; none are needed where it ``fits``.

    ``expandable``: it does not fit, but would with the allocator's ``expandable_segments:True``, which costs
    nothing and is tried before any lever.
    """

    job: TrainingJob
    room: Room
    fits: bool
    tight: bool
    expandable: bool
    estimate: Estimate
    plans: tuple[Plan, ...]

    def to_json(self) -> dict[str, Any]:
        """For the command line."""
        return {
            "fits": self.fits,
            "tight": self.tight,
            "fits_with_expandable_segments": self.expandable,
            "held_bytes": held_bytes(self.estimate),
            "limit_bytes": self.room.limit_bytes,
            "plans": [plan.to_json() for plan in self.plans],
        }


def plans(job: TrainingJob, room: Room, detail: Detail = "exact") -> Plans:
    """The plans for ``job``, by what they cost: first nothing but time, last more machines.

    Within one cost the shortest lists come first, then the quickest steps; a list two levers longer than the
    shortest is left out. A list is minimal: no lever of it can be spared. The micro batch is halved, and
    ranks are doubled, only as often as it takes. "exact" asks the allocator about every list that the fast
    peak lets through.
    """
    job = job.with_(device=room.device.name)
    state = outcome(job, room, detail)
    found: list[tuple[MemoryLever, ...]] = []
    ready: list[Plan] = []
    if not state.fits:
        for cost in range(len(_COSTS)):
            ready += _of_cost(cost, job, room, detail, found)
            if len(ready) >= MOST_PLANS:
                break
    return Plans(
        job=job,
        room=room,
        fits=state.fits,
        tight=state.tight,
        expandable=not state.fits and detail == "exact" and _fits_expandable(job, room),
        estimate=answer(job, detail),
        plans=tuple(ready[:MOST_PLANS]),
    )


def _fits_expandable(job: TrainingJob, room: Room) -> bool:
    if not can_fit(job, room) or answer(job, "fast").engine != "tape":
        return False
    return capacity_report(job, room.usable_bytes).answer == "fits_with_expandable_segments"


def _of_cost(
    cost: int, job: TrainingJob, room: Room, detail: Detail, found: list[tuple[MemoryLever, ...]]
) -> list[Plan]:
    """The plans that need a lever of this cost; ``found`` grows, so that no list contains an earlier one."""
    keys = [key for keys in _COSTS[: cost + 1] for key in keys]
    levers = [lever for lever in ALL_LEVERS if lever.key in keys and lever.pull(job) is not None]
    new = [lever for lever in levers if lever.key in _COSTS[cost]]
    if not new or not any(_pulls(job, every, room) is not None for every in _everything(levers, new)):
        return []
    ready: list[Plan] = []
    longest = min([_MOST_LEVERS, *(len(other) + 1 for other in found)])
    for size in range(1, longest + 1):
        for chosen in _lists(levers, new, size):
            if any(set(other) <= set(chosen) for other in found):
                continue
            plan = _made(job, chosen, room, detail)
            if plan is not None:
                found.append(chosen)
                ready.append(plan)
        if len(ready) >= _MOST_OF_A_COST or (ready and size > len(ready[0].steps)):
            break
    ready.sort(key=lambda plan: (len(plan.steps), _numerics(plan), plan.step_time_share))
    return ready[:_MOST_OF_A_COST]


def _numerics(plan: Plan) -> bool:
    return any(step.lever.mathematics != "identical" for step in plan.steps)


def _lists(
    levers: Sequence[MemoryLever], new: Sequence[MemoryLever], size: int
) -> Iterator[tuple[MemoryLever, ...]]:
    for chosen in combinations(levers, size):
        keys = {lever.key for lever in chosen}
        if any(lever in new for lever in chosen) and not any(_INSTEAD.get(key, set()) & keys for key in keys):
            yield chosen


def _everything(
    levers: Sequence[MemoryLever], new: Sequence[MemoryLever]
) -> Iterator[tuple[MemoryLever, ...]]:
    """For each new lever, every lever that goes with it: if that does not fit, no list with it does.

    Accumulation keeps gradients through the forward pass, so a smaller micro batch need not help: both ways.
    """
    for lever in new:
        against = _INSTEAD.get(lever.key, set()) | {
            key for key, keys in _INSTEAD.items() if lever.key in keys
        }
        together = tuple(other for other in levers if other.key not in against)
        yield together
        yield tuple(other for other in together if other.key != "micro_batch")


def _pulls(job: TrainingJob, chosen: Sequence[MemoryLever], room: Room) -> dict[str, int] | None:
    """How often each lever is pulled so that the fast peak fits, as seldom as it takes; None: it never does."""
    for lever in chosen:
        if not lever.repeats:
            changed = lever.pull(job)
            if changed is None:
                return None
            job = changed
    # The fewest devices first, then the largest micro batch on them.
    again = sorted((lever for lever in chosen if lever.repeats), key=lambda lever: lever.key != "sharding")
    found = _again(job, again, room)
    return None if found is None else {lever.key: found.get(lever.key, 1) for lever in chosen}


def _again(job: TrainingJob, levers: Sequence[MemoryLever], room: Room) -> dict[str, int] | None:
    if not levers:
        return {} if can_fit(job, room) else None
    lever, *rest = levers
    times, changed = 0, lever.pull(job)
    while changed is not None:
        times += 1
        found = _again(changed, rest, room)
        if found is not None:
            return {lever.key: times, **found}
        changed = lever.pull(changed)
    return None


def _made(job: TrainingJob, chosen: Sequence[MemoryLever], room: Room, detail: Detail) -> Plan | None:
    """The plan that pulls ``chosen``, None where it does not fit."""
    pulls = _pulls(job, chosen, room)
    while pulls is not None:
        steps = _steps(job, chosen, pulls, room)
        state = outcome(steps[-1].job, room, detail)
        if state.fits:
            return Plan(
                steps=steps, job=steps[-1].job, estimate=answer(steps[-1].job, detail), tight=state.tight
            )
        # The allocator needs more than the fast peak: one more halving may do.
        last = next((lever for lever in chosen if lever.repeats), None)
        if last is None or last.pull(steps[-1].job) is None:
            return None
        pulls = {**pulls, last.key: pulls[last.key] + 1}
    return None


def _steps(
    job: TrainingJob, chosen: Sequence[MemoryLever], pulls: dict[str, int], room: Room
) -> tuple[PlanStep, ...]:
    """What each lever saves depends on those before it, because the peak moves; told in the order in which
    each saves something, where there is one."""
    steps = _in_order(job, chosen, pulls, room)
    if min(step.saved_bytes for step in steps) <= 0:
        other = _in_order(job, tuple(reversed(chosen)), pulls, room)
        if min(step.saved_bytes for step in other) > 0:
            return other
    return steps


def _in_order(
    job: TrainingJob, chosen: Sequence[MemoryLever], pulls: dict[str, int], room: Room
) -> tuple[PlanStep, ...]:
    steps = []
    for lever in chosen:
        before = job
        for _ in range(pulls[lever.key]):
            job = lever.pull(job) or job
        saved = answer(before, "fast").peak_allocated_bytes - answer(job, "fast").peak_allocated_bytes
        cost = price(lever, before, job, room.device)
        steps.append(
            PlanStep(lever=lever, job=job, saved_bytes=saved, price=cost, name=_named(lever, before, job))
        )
    return tuple(steps)


def _named(lever: MemoryLever, before: TrainingJob, after: TrainingJob) -> str:
    if lever.key == "micro_batch":
        return (
            f"micro batch {before.micro_batch} to {after.micro_batch}, accumulation {before.accumulation} to "
            f"{after.accumulation}"
        )
    if lever.key == "sharding":
        return f"FSDP2 over {after.sharding.data_parallel} devices"
    return lever.name
