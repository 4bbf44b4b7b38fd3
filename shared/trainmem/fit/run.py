"""A job run on a device of a given size: its steps fed to the allocator as they are recorded."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from trainmem.allocator import first_freed, stream_allocator
from trainmem.job import TrainingJob
from trainmem.model import resolve
from trainmem.recording import Recording, kernel_loads, without_collections
from trainmem.tape import record_by_step

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

    A step is recorded when the one before has run, and the third no further run than it differs from the second.
    """
    architecture = resolve(job).architecture
    with without_collections():
        machine, stages = _Machine(limit_bytes), record_by_step(job, architecture, is_named=False)
        is_loaded = machine.play(next(stages))
        if not is_loaded:
            # A model whose 16-bit weights alone are too large for the device comes packed from the host.
            stages = record_by_step(job, architecture, is_named=False, from_host=True)
            machine = _Machine(limit_bytes)
            if not machine.play(next(stages)):
                return None
        retries = machine.allocator.retries if is_loaded else 0
        peak = _steady_peak(machine, stages) if machine.play(next(stages)) else None
        return None if peak is None else machine.ran(peak, retries)


def _steady_peak(machine: _Machine, stages: Iterator[Recording]) -> int | None:
    """The peak of the third step, after it and the second were run; None where memory runs out.

    Where a phase of the third begins as that of the second did, block for block, and no segment came or went in
    between, all that follows is the same. That holds only of steps that free nothing from before them.
    """
    start, first = machine.done, machine.allocations
    recording = next(stages)
    marks = [mark.event for mark in recording.marks if mark.step == 2 and mark.event > start]
    ends = [*sorted({*marks, len(recording.events)})]
    passed: list[tuple[_State, int]] = []
    for end in ends:
        state = machine.state(first)
        if not machine.play(recording, end):
            return None
        passed.append((state, machine.highest_bytes))
    step, count = recording.events[start:], machine.allocations - first
    freed = first_freed(step)
    if freed is not None and freed < first:
        return machine.highest_bytes if machine.play(next(stages)) else None
    streams = {number + count: of for number, of in recording.stream_of.items() if number >= first}
    begin, peak = start, 0
    for number, end in enumerate(ends):
        if passed[number][0] == machine.state(first + count):
            return max(peak, *(highest for _, highest in passed[number:]))
        if not machine.play_again(step[begin - start : end - start], count, streams):
            return None
        begin, peak = end, max(peak, machine.highest_bytes)
    return peak


_State = tuple[int, int, object]


class _Machine:
    """An allocator, how far it has played a recording, and the highest allocated bytes of what it played last."""

    def __init__(self, limit_bytes: int | None) -> None:
        self.allocator = stream_allocator(capacity_bytes=limit_bytes)
        self.done = 0
        self.highest_bytes = 0
        self.loads: dict[int, int] = {}

    @property
    def allocations(self) -> int:
        """How many there were."""
        return self.allocator.allocations

    def play(self, recording: Recording, end: int | None = None) -> bool:
        """Play a recording further, up to an event; False where memory runs out."""
        self.highest_bytes = 0
        streams = defaultdict(int, recording.stream_of) if recording.stream_of else None
        stop = len(recording.events) if end is None else end
        emptied = {event for event in recording.empty_cache_before if self.done <= event < stop}
        if not self.loads:
            self.loads = kernel_loads(recording)
        loads = {event: size for event, size in self.loads.items() if self.done <= event < stop}
        for start, until in pairwise(sorted({self.done, stop, *emptied, *loads})):
            if start in emptied:
                self.allocator.empty_cache()
            if start in loads:
                self.allocator.load_kernels(loads[start])
            highest = self.allocator.highest(recording.events[start:until], streams)
            if highest is None:
                return False
            self.highest_bytes = max(self.highest_bytes, highest)
        self.done = stop
        return True

    def play_again(self, events: array[int], later: int, streams: dict[int, int]) -> bool:
        """Play events a second time: they free the allocations that come so many later. False where memory runs out."""
        found = self.allocator.highest(events, defaultdict(int, streams) if streams else None, later=later)
        self.highest_bytes = found or 0
        return found is not None

    def state(self, first: int) -> _State:
        """Whether segments came or went, and where blocks are: of a step, those from its first allocation on."""
        return self.allocator.retries, self.allocator.reserved_bytes, self.allocator.blocks(first)

    def ran(self, peak_bytes: int, retries_before: int = 0) -> Ran:
        """What it took."""
        return Ran(
            retried=self.allocator.retries > retries_before,
            peak_bytes=peak_bytes,
            reserved_bytes=self.allocator.reserved_bytes,
        )
