"""Does one job fit? A bound in half a millisecond, and the machine's own answer in a tenth of a second."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Literal

from trainmem.allocator import CachingAllocator
from trainmem.estimate import Detail, Estimate, estimate
from trainmem.fit.bounds import least_bytes
from trainmem.fit.ranks import estimate_rank
from trainmem.fit.room import Room
from trainmem.job import Sharding, TrainingJob
from trainmem.model import resolve
from trainmem.recording import Recording, without_collections
from trainmem.tape import record
from trainmem.whiteboard.adapters import trainable_shapes
from trainmem.whiteboard.optimizer_state import optimizer_state
from trainmem.whiteboard.states import recipe_of

__all__ = ["Basis", "Outcome", "answer", "can_fit", "fits", "held_bytes", "outcome"]

Basis = Literal["allocator", "bound", "sum"]
"""allocator: three steps replayed through it; bound: the fast peak, which the allocator never stays below;
sum: an engine without an allocator (the whiteboard, a shard)."""


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
    """The tape's estimate of one rank, and where it knows FSDP2 alone, what `estimate_rank` makes of it."""
    short = _short(job)
    found = _fast(short)
    if found.engine != "tape" and job.sharding != Sharding():
        return estimate_rank(job)
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


def held_bytes(found: Estimate) -> int:
    """What the allocator holds at the peak: reserved where it was replayed, else allocated."""
    reserved = found.peak_reserved_bytes
    return found.peak_allocated_bytes if reserved is None else reserved


def _outside_bytes(job: TrainingJob, room: Room) -> int:
    """Memory outside torch's allocator that comes out of the same pool: paged state, where CPU and GPU share
    one memory."""
    if not room.device.integrated or not job.optimizer.startswith("paged"):
        return 0
    shapes = trainable_shapes(resolve(job).architecture, job.lora)
    return optimizer_state(job.optimizer, shapes, recipe_of(job).state_bytes).managed_bytes


def can_fit(job: TrainingJob, room: Room) -> bool:
    """False only where the job surely does not fit: its fast peak is more than the allocator may reserve."""
    limit = room.limit_bytes - _outside_bytes(job, room)
    return least_bytes(job) <= limit and answer(job, "fast").peak_allocated_bytes <= limit


def outcome(job: TrainingJob, room: Room, detail: Detail = "exact") -> Outcome:
    """Whether ``job`` fits into ``room``.

    "fast" compares the fast peak with the limit: what it refuses does not fit, what it lets through may need
    some percent more for the allocator's unsplit rests and idle pieces. "exact" asks the allocator: three
    steps are replayed with ``limit_bytes`` to reserve, as the machine would run them.
    """
    if not can_fit(job, room):
        return Outcome(fits=False, basis="bound")
    if _fast(_short(job)).engine != "tape":
        return Outcome(fits=True, basis="sum")
    if detail == "fast":
        return Outcome(fits=True, basis="bound")
    return _through_the_allocator(job, room.limit_bytes - _outside_bytes(job, room))


def fits(job: TrainingJob, room: Room, detail: Detail = "exact") -> bool:
    """`Outcome.fits`."""
    return outcome(job, room, detail).fits


@lru_cache(maxsize=4096)
def _through_the_allocator(job: TrainingJob, limit_bytes: int) -> Outcome:
    recording = record(_short(job), resolve(job).architecture)
    steps = next(mark.event for mark in recording.marks if mark.step > 0)
    with without_collections():
        found = _run(recording, steps, limit_bytes)
        if found is None:
            found = _run(_loaded_piece_by_piece(recording, steps), 0, limit_bytes)
    return found or Outcome(fits=False, basis="allocator")


def _run(recording: Recording, steps: int, limit_bytes: int) -> Outcome | None:
    """The run of a recording whose steps begin at an event; None where the model cannot even be loaded."""
    allocator = CachingAllocator(capacity_bytes=limit_bytes)
    streams = defaultdict(int, recording.stream_of) if recording.stream_of else None
    events, retries = recording.events, 0
    allocated: list[int] = []
    for start, end in pairwise(sorted({0, steps, len(events), *recording.empty_cache_before})):
        if start in recording.empty_cache_before:
            allocator.empty_cache()
        if start == steps:
            retries = allocator.retries
        allocator.feed(events[start:end], allocated, [], streams=streams)
        if allocator.oom is not None:
            return None if start < steps else Outcome(fits=False, basis="allocator")
    third = next(mark.event for mark in recording.marks if mark.step == 3)
    return Outcome(
        fits=True,
        tight=allocator.retries > retries,
        basis="allocator",
        peak_bytes=max(allocated[third:]),
        reserved_bytes=allocator.reserved_bytes,
    )


def _loaded_piece_by_piece(recording: Recording, steps: int) -> Recording:
    """The same steps after a load that never holds more than what it leaves.

    A model whose 16-bit weights alone are too large for the device is packed weight by weight from the host.
    """
    freed = {~event for event in recording.events[:steps] if event < 0}
    numbers: dict[int, int] = {}
    events: list[int] = []
    number = 0
    for event in recording.events:
        if event > 0:
            if number not in freed:
                numbers[number] = len(numbers)
                events.append(event)
            number += 1
        elif ~event in numbers:
            events.append(~numbers[~event])
    gone = len(recording.events) - len(events)
    return replace(
        recording,
        events=events,
        marks=[
            replace(mark, event=mark.event - gone) if mark.event >= steps else mark
            for mark in recording.marks
        ],
        bucket_of=[recording.bucket_of[number] for number in numbers],
        stream_of={
            numbers[number]: stream for number, stream in recording.stream_of.items() if number in numbers
        },
        empty_cache_before=[],
    )
