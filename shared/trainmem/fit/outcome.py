"""Does one job fit? A bound in half a millisecond, and the machine's own answer in a tenth of a second."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

from trainmem.capacity import needed_bytes, sum_answer, sum_low_bytes
from trainmem.estimate import Detail, Estimate, estimate
from trainmem.fit.bounds import least_bytes
from trainmem.fit.room import Room
from trainmem.fit.run import run
from trainmem.job import TrainingJob
from trainmem.model import resolve
from trainmem.recording import without_collections
from trainmem.whiteboard.adapters import trainable_shapes
from trainmem.whiteboard.optimizer_state import optimizer_state
from trainmem.whiteboard.states import recipe_of

__all__ = [
    "Basis",
    "Outcome",
    "answer",
    "can_fit",
    "fits",
    "held_alone",
    "limit_of",
    "needs_at_least",
    "outcome",
    "survives",
]

Basis = Literal["allocator", "bound", "sum"]
"""allocator: three steps replayed through it; bound: the fast peak, which the allocator never stays below;
sum: an `Estimate.is_sum`, of which only what probably fits under its worst error does where it is of a rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Whether a job fits.

    ``tight``: only because the allocator gives idle segments back to the device and asks again, which costs
    time at every step it happens; with expandable segments it would not need to. ``peak_bytes`` are
    allocated at the peak of the third step, and ``reserved_bytes`` held after it, where the allocator ran it.
    """

    fits: bool
    tight: bool = False
    basis: Basis
    peak_bytes: int | None = field(default=None, compare=False)
    reserved_bytes: int | None = field(default=None, compare=False)


def answer(job: TrainingJob, detail: Detail) -> Estimate:
    """What `estimate` answers, of few micro batches, which peak as many do."""
    short = _short(job)
    found = _fast(short)
    if found.engine == "tape" and detail == "exact":
        found = estimate(short, "tape", "exact")
    return replace(found, job=job)


def _short(job: TrainingJob) -> TrainingJob:
    """The same peaks sooner: a third micro batch does what the second did, add to gradients that exist."""
    return job if job.accumulation <= 2 else replace(job, accumulation=2)


@lru_cache(maxsize=4096)
def _fast(job: TrainingJob) -> Estimate:
    with without_collections():
        return estimate(job, "tape", "fast")


def held_alone(job: TrainingJob) -> int:
    """What the allocator would hold if it were given all that the job asks for; the fast peak without a replay."""
    if _fast(_short(job)).is_sum:
        return needed_bytes(answer(job, "exact"))
    ran = run(_short(job), None)
    assert ran is not None
    return ran.reserved_bytes


def _outside_bytes(job: TrainingJob, room: Room) -> int:
    """Memory outside torch's allocator that comes out of the same pool: paged state, where CPU and GPU share
    one memory."""
    if not room.device.integrated or not job.optimizer.startswith("paged"):
        return 0
    shapes = trainable_shapes(resolve(job).architecture, job.lora)
    return optimizer_state(job.optimizer, shapes, recipe_of(job).state_bytes).managed_bytes


def limit_of(job: TrainingJob, room: Room) -> int:
    """What the allocator may reserve beside what the job takes of the same memory outside it."""
    return room.limit_bytes - _outside_bytes(job, room)


def needs_at_least(job: TrainingJob, limit_bytes: int) -> int:
    """What the allocator must reserve for sure: the fast peak, or a bound below it that is above the limit already."""
    least = least_bytes(job)
    if least > limit_bytes:
        return least
    found = answer(job, "fast")
    return max(least, sum_low_bytes(found) if found.over_ranks else found.peak_allocated_bytes)


def can_fit(job: TrainingJob, room: Room) -> bool:
    """False only where the job surely does not fit: its fast peak is more than the allocator may reserve."""
    limit = limit_of(job, room)
    return needs_at_least(job, limit) <= limit


def outcome(job: TrainingJob, room: Room, detail: Detail = "exact") -> Outcome:
    """Whether ``job`` fits into ``room``.

    "fast" compares the fast peak with the limit: what it refuses does not fit, what it lets through may need
    some percent more for the allocator's unsplit rests and idle pieces. "exact" asks the allocator: three
    steps are replayed with ``limit_bytes`` to reserve, as the machine would run them.
    """
    if not can_fit(job, room):
        return Outcome(fits=False, basis="bound")
    quick = _fast(_short(job))
    if quick.over_ranks and detail == "exact":
        found = answer(job, "exact")
        said = sum_answer(found, limit_of(job, room))
        return Outcome(fits=said == "probably_fits", basis="sum", reserved_bytes=found.peak_reserved_bytes)
    if quick.is_sum:
        return Outcome(fits=True, basis="sum")
    if detail == "fast":
        return Outcome(fits=True, basis="bound")
    return _through_the_allocator(job, limit_of(job, room))


def fits(job: TrainingJob, room: Room, detail: Detail = "exact") -> bool:
    """`Outcome.fits`."""
    return outcome(job, room, detail).fits


def survives(job: TrainingJob, room: Room) -> bool:
    """`fits`, where a bound is not expected to spare the replay."""
    if _fast(_short(job)).is_sum:
        return fits(job, room)
    return run(_short(job), limit_of(job, room)) is not None


def _through_the_allocator(job: TrainingJob, limit_bytes: int) -> Outcome:
    ran = run(_short(job), limit_bytes)
    if ran is None:
        return Outcome(fits=False, basis="allocator")
    return Outcome(
        fits=True,
        tight=ran.retried,
        basis="allocator",
        peak_bytes=ran.peak_bytes,
        reserved_bytes=ran.reserved_bytes,
    )
