"""A job run on a device of a given size: its steps fed to the allocator as they are recorded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from trainmem.allocator import CachingAllocator
from trainmem.job import TrainingJob
from trainmem.model import resolve
from trainmem.recording import Recording, without_collections
from trainmem.tape import record, record_by_step

__all__ = ["Ran", "run"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """What three steps took.

    ``retried``: idle segments were given back and asked for again in a step. ``peak_bytes`` are allocated at the
    peak of the third step, ``reserved_bytes`` held after it.
    """

    retried: bool
    peak_bytes: int
    reserved_bytes: int


@lru_cache(maxsize=4096)
def run(job: TrainingJob, limit_bytes: int | None) -> Ran | None:
    """Three steps of ``job`` with so much to reserve, or all that they ask for; None where memory runs out.

    A step is recorded when the one before has run. The third need not run where it begins as the second did.
    """
    architecture = resolve(job).architecture
    with without_collections():
        machine, stages = _Machine(limit_bytes), record_by_step(job, architecture)
        if not machine.play(next(stages)):
            return _run_packed_from_host(record(job, architecture), limit_bytes)
        loading = machine.allocator.retries
        for step, recording in enumerate(stages, 1):
            start, before = machine.done, machine.state() if step == 2 else None
            if not machine.play(recording):
                return None
            if before is not None and before == machine.state() and _frees_its_own(recording.events, start):
                break
        return machine.ran(loading)


def _run_packed_from_host(recording: Recording, limit_bytes: int | None) -> Ran | None:
    """The run of a model whose 16-bit weights alone are too large for the device."""
    machine = _Machine(limit_bytes)
    packed = _loaded_piece_by_piece(recording)
    third = next(mark.event for mark in packed.marks if mark.step == 3)
    for end in (third, len(packed.events)):
        if not machine.play(packed, end):
            return None
    return machine.ran()


class _Machine:
    """An allocator, how far it has played a recording, and the allocated bytes of what it played last."""

    def __init__(self, limit_bytes: int | None) -> None:
        self.allocator = CachingAllocator(capacity_bytes=limit_bytes)
        self.done = 0
        self.allocated: list[int] = []

    def play(self, recording: Recording, end: int | None = None) -> bool:
        """Play a recording further, up to an event; False where memory runs out."""
        self.allocated = []
        streams = defaultdict(int, recording.stream_of) if recording.stream_of else None
        stop = len(recording.events) if end is None else end
        emptied = {event for event in recording.empty_cache_before if self.done <= event < stop}
        for start, until in pairwise(sorted({self.done, stop, *emptied})):
            if start in emptied:
                self.allocator.empty_cache()
            self.allocator.feed(recording.events[start:until], self.allocated, [], streams=streams)
            if self.allocator.oom is not None:
                return False
        self.done = stop
        return True

    def state(self) -> tuple[int, int, dict[int, int]]:
        """All that decides where the next blocks go, as long as no segment was given back meanwhile."""
        return self.allocator.retries, self.allocator.reserved_bytes, self.allocator.free_blocks()

    def ran(self, retries_before: int = 0) -> Ran:
        """What it took, where the third step or its like was played last."""
        return Ran(
            retried=self.allocator.retries > retries_before,
            peak_bytes=max(self.allocated),
            reserved_bytes=self.allocator.reserved_bytes,
        )


def _frees_its_own(events: Sequence[int], start: int) -> bool:
    """Whether a step that begins at an event frees nothing that lived before it, so that the next step is like it."""
    before = sum(1 for event in events[:start] if event > 0)
    return all(~event >= before for event in events[start:] if event < 0)


def _loaded_piece_by_piece(recording: Recording) -> Recording:
    """The same steps after a load that never holds more than what it leaves: packed weight by weight from the host."""
    steps = next(mark.event for mark in recording.marks if mark.step > 0)
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
