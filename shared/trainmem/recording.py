"""A training run as a list of allocations and frees, and what its memory counters would read.

Both engines that replay a step, the tape and the trace, end in a `Recording`. The allocator turns it into
allocated and reserved bytes after every event, and `read` turns those into the figures of one step: phases, the
peak, its instant and the buckets that fill it.
"""

from __future__ import annotations

import gc
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Literal

from trainmem.allocator import (
    AllocatorSettings,
    OutOfMemory,
    RisingAddresses,
    SegmentPlacement,
    event_of,
    replay,
)
from trainmem.buckets import BUCKETS, Bucket
from trainmem.units import MIB

__all__ = [
    "PHASES",
    "Counters",
    "Mark",
    "Phase",
    "Recording",
    "StepFigures",
    "counters",
    "kernel_loads",
    "most_reserved",
    "read_step",
    "without_collections",
]

Phase = Literal["setup", "forward", "backward", "optimizer", "zero_grad"]
PHASES: tuple[Phase, ...] = ("setup", "forward", "backward", "optimizer", "zero_grad")

_WORKSPACE = BUCKETS.index("workspace")
_FORWARD_KERNELS_BYTES = 18 * MIB
_BACKWARD_KERNELS_BYTES = 8 * MIB


@dataclass(frozen=True, slots=True)
class Mark:
    """A phase begins before event number ``event``; ``step`` counts from 1 (0 is setup), ``micro`` from 0."""

    event: int
    step: int
    phase: Phase
    micro: int = 0


@dataclass(slots=True)
class Recording:
    """Events in the allocator's stream format, and what each allocation is.

    ``events``: a positive number is an allocation of that many requested bytes, numbered 0, 1, 2, ... in order;
    ``~number`` frees it; they stand side by side in memory, as machine code reads them. ``bucket_of``, ``op_of``
    and ``module_of`` are indexed by allocation number.
    ``stream_of`` names the stream of allocations that are not on the default one.
    ``empty_cache_before`` are the events before which the program gives idle segments back to the device.
    One that is not ``is_named``, for those who only play it, says nothing of its allocations but how many there are,
    ``unnamed``, and which is the first ``workspace`` of a library.
    """

    events: array[int] = field(default_factory=lambda: array("q"))
    bucket_of: list[int] = field(default_factory=list)
    op_of: list[str] = field(default_factory=list)
    module_of: list[str] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    stream_of: dict[int, int] = field(default_factory=dict)
    empty_cache_before: list[int] = field(default_factory=list)
    parameters: int = 0
    trainable_parameters: int = 0
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_named: bool = True
    unnamed: int = 0
    workspace: int = -1

    @property
    def allocations(self) -> int:
        """How many there are."""
        return len(self.bucket_of) if self.is_named else self.unnamed

    def allocate(self, size_bytes: int, bucket: int, op: str, module: str = "") -> int:
        """Record an allocation and return its number; zero bytes allocate nothing and answer -1."""
        if size_bytes <= 0:
            return -1
        self.events.append(size_bytes)
        if not self.is_named:
            self.unnamed += 1
            return self.unnamed - 1
        self.bucket_of.append(bucket)
        self.op_of.append(op)
        self.module_of.append(module)
        return len(self.bucket_of) - 1

    def copy(self) -> Recording:
        """One that goes on from here by itself."""
        return replace(self, **{name: getattr(self, name).copy() for name in _COLUMNS}, events=self.events[:])

    def allocate_all(
        self, sizes: Sequence[int], bucket: int, ops: Sequence[str], modules: Sequence[str]
    ) -> Sequence[int]:
        """Record allocations one after the other, each with its op and module; their numbers."""
        if 0 in sizes:
            return [self.allocate(size, bucket, *of) for size, *of in zip(sizes, ops, modules, strict=True)]
        first = self.allocations
        self.events.extend(sizes)
        if self.is_named:
            self.bucket_of += [bucket] * len(sizes)
            self.op_of += ops
            self.module_of += modules
        else:
            self.unnamed += len(sizes)
        return range(first, first + len(sizes))

    def append(self, other: Recording, module: str) -> None:
        """Record the events of another one here, in the name of ``module`` those that have a name."""
        first = self.allocations
        self.events.extend([event if event > 0 else event - first for event in other.events])
        if self.is_named:
            self.bucket_of += other.bucket_of
            self.op_of += other.op_of
            self.module_of += [module if name else "" for name in other.module_of]
        else:
            self.unnamed += other.allocations

    def free(self, number: int) -> None:
        """Record that an allocation is freed; -1 is ignored."""
        if number >= 0:
            self.events.append(~number)

    def free_all(self, numbers: Iterable[int]) -> None:
        """Record that allocations are freed in this order; -1 is ignored."""
        self.events.extend([~number for number in numbers if number >= 0])

    def streams(self) -> list[int] | None:
        """The stream of every allocation; None where all are on the default one."""
        if not self.stream_of:
            return None
        return [self.stream_of.get(number, 0) for number in range(self.allocations)]

    def empty_cache(self) -> None:
        """The program gives idle segments back here."""
        self.empty_cache_before.append(len(self.events))

    def mark(self, step: int, phase: Phase, micro: int = 0) -> None:
        """A phase begins here."""
        self.marks.append(Mark(len(self.events), step, phase, micro))


_COLUMNS = (
    "bucket_of",
    "op_of",
    "module_of",
    "marks",
    "stream_of",
    "empty_cache_before",
    "warnings",
    "notes",
)


@dataclass(slots=True)
class Counters:
    """Allocated and reserved bytes after every event, and the whole block each allocation occupies."""

    allocated: list[int]
    reserved: list[int] | None
    block_bytes: list[int]
    oom: OutOfMemory | None = None


def counters(
    recording: Recording,
    *,
    detail: Literal["fast", "exact"] = "exact",
    settings: AllocatorSettings | None = None,
    capacity_bytes: int | None = None,
    placement: SegmentPlacement | None = None,
) -> Counters:
    """What the GPU's counters would read: through the allocator's rules, or (fast) rounded to 512 bytes only.

    ``placement`` gives segments their addresses, `trainmem.allocator.DeviceAddresses` where it is None.
    """
    if detail == "exact":
        with without_collections():
            result = replay(
                recording.events,
                settings=settings or AllocatorSettings(),
                capacity_bytes=capacity_bytes,
                empty_cache_before=recording.empty_cache_before,
                streams=recording.streams(),
                placement=placement,
                kernels_loaded_before=kernel_loads(recording),
            )
        return Counters(result.allocated, result.reserved, result.block_bytes, result.oom)
    blocks: list[int] = []
    deltas: list[int] = []
    for event in recording.events:
        if event > 0:
            block = (event + 511) & ~511
            blocks.append(block)
            deltas.append(block)
        else:
            deltas.append(-blocks[~event])
    return Counters(list(accumulate(deltas)), None, blocks)


def kernel_loads(recording: Recording) -> dict[int, int]:
    """Before which events the driver loads kernels for the first time, and how many bytes of them.

    With the first matrix product, whose workspace shows it, come those of a block's forward; with the first
    backward come others. The sizes are what segments left free for them in recordings of GPT-2 on an H200 (see
    `DeviceAddresses`): 12 and 6 MiB in two holes right after cuBLAS's workspace was made, and at least 8 in one
    by the optimizer's step. They are the same for every job here, although each loads kernels of its own.
    """
    loads: dict[int, int] = {}
    number = recording.workspace
    if _WORKSPACE in recording.bucket_of:
        number = recording.bucket_of.index(_WORKSPACE)
    if number >= 0:
        loads[event_of(recording.events, number) + 1] = _FORWARD_KERNELS_BYTES
    backward = next((mark.event for mark in recording.marks if mark.phase == "backward"), None)
    if backward is not None:
        loads[backward] = loads.get(backward, 0) + _BACKWARD_KERNELS_BYTES
    return loads


@contextmanager
def without_collections() -> Iterator[None]:
    """No garbage collections meanwhile: a replay makes many lists and no cycles, and they cost it a third.

    What was made counts as old afterwards, so that the next collection, too, need not look at all of it.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
            gc.enable()


@dataclass(slots=True)
class StepFigures:
    """One step, as a harness that reads the counters at phase boundaries would report it (bytes)."""

    phases: dict[str, int]
    peak_allocated_bytes: int
    peak_reserved_bytes: int | None
    peak_event: int
    peak_phase: Phase
    buckets_at_peak: dict[Bucket, int]
    peak_op: str
    peak_module: str


def most_reserved(
    recording: Recording, result: Counters, step: int, *, settings: AllocatorSettings | None = None
) -> int:
    """The reserved peak up to ``step``, the larger under either order of segments' addresses.

    ``result`` is the replay under falling ones; see `trainmem.allocator.addresses`.
    """
    rising = counters(recording, settings=settings, placement=RisingAddresses())
    found = [read_step(recording, each, step).peak_reserved_bytes for each in (result, rising)]
    return max(reserved for reserved in found if reserved is not None)


def live_buckets(recording: Recording, result: Counters, event: int) -> dict[Bucket, int]:
    """Bytes by bucket after event number ``event``; they sum to the allocated bytes there."""
    totals = [0] * len(BUCKETS)
    number = 0
    blocks, bucket_of = result.block_bytes, recording.bucket_of
    for value in recording.events[: event + 1]:
        if value > 0:
            totals[bucket_of[number]] += blocks[number]
            number += 1
        else:
            totals[bucket_of[~value]] -= blocks[~value]
    return dict(zip(BUCKETS, totals, strict=True))


def _spans(recording: Recording, step: int) -> list[tuple[Phase, int, int]]:
    ends = [mark.event for mark in recording.marks[1:]] + [len(recording.events)]
    return [
        (mark.phase, mark.event, end)
        for mark, end in zip(recording.marks, ends, strict=True)
        if mark.step == step
    ]


def read_step(recording: Recording, result: Counters, step: int) -> StepFigures:
    """The figures of one recorded step.

    With accumulation a phase's peak is the highest over its micro batches and "after" is the last one's end.
    Reserved is the highest since the model was loaded, as ``max_memory_reserved`` reads it when its peak is
    reset before the first step.
    """
    allocated = result.allocated
    spans = _spans(recording, step)
    if not spans:
        raise ValueError(f"step: {step} was not recorded")
    before = spans[0][1]
    start = allocated[before - 1] if before else 0
    phases = {"start_bytes": start}
    peak, peak_event, peak_phase = start, max(before - 1, 0), spans[0][0]
    for name in PHASES[1:]:
        level = top = None
        for phase, begin, end in spans:
            if phase != name:
                continue
            entry = allocated[begin - 1] if begin else 0
            high = max(entry, max(allocated[begin:end], default=0))
            top = high if top is None else max(top, high)
            level = allocated[end - 1] if end else 0
            if high > peak:
                peak, peak_phase = high, phase
                peak_event = begin + allocated[begin:end].index(high) if high != entry else begin - 1
        if level is None or top is None:
            continue
        phases[f"after_{name}_bytes"] = level
        if name != "zero_grad":
            phases[f"peak_{name}_bytes"] = top
    last = spans[-1][2]
    loaded = next((mark.event for mark in recording.marks if mark.step > 0), 0)
    number = sum(1 for value in recording.events[: peak_event + 1] if value > 0) - 1
    return StepFigures(
        phases=phases,
        peak_allocated_bytes=peak,
        peak_reserved_bytes=max(result.reserved[loaded:last]) if result.reserved is not None else None,
        peak_event=peak_event,
        peak_phase=peak_phase,
        buckets_at_peak=live_buckets(recording, result, peak_event),
        peak_op=recording.op_of[number] if number >= 0 else "",
        peak_module=recording.module_of[number] if number >= 0 else "",
    )
