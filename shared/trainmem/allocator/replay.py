"""Replay a step's allocations and frees, and read the counters a GPU would show."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from trainmem.allocator.addresses import SegmentPlacement
from trainmem.allocator.caching import CachingAllocator
from trainmem.allocator.compiled import CompiledAllocator, compiled_allocator
from trainmem.allocator.oom import OutOfMemory
from trainmem.allocator.settings import AllocatorSettings

__all__ = ["Replay", "replay", "stream_allocator"]


def stream_allocator(
    settings: AllocatorSettings | None = None,
    *,
    capacity_bytes: int | None = None,
    outside_bytes: int = 0,
    placement: SegmentPlacement | None = None,
) -> CachingAllocator | CompiledAllocator:
    """The fastest allocator there is for a stream of events in the default pool: `CachingAllocator`'s arguments."""
    compiled = compiled_allocator(
        settings, capacity_bytes=capacity_bytes, outside_bytes=outside_bytes, placement=placement
    )
    return compiled or CachingAllocator(
        settings, capacity_bytes=capacity_bytes, outside_bytes=outside_bytes, placement=placement
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """What the counters read after each event."""

    events: Sequence[int]

    allocated: list[int]
    """``torch.cuda.memory_allocated`` after each event: whole blocks, their unsplit rest included."""

    reserved: list[int]
    """``torch.cuda.memory_reserved`` after each event."""

    block_bytes: list[int]
    """Size of the block that each allocation got, by allocation number."""

    retries: int
    """How often every idle segment was given back because the device was full (``num_alloc_retries``)."""

    oom: OutOfMemory | None
    """The allocation that failed; the lists then end before it."""

    @property
    def peak_allocated_bytes(self) -> int:
        """``torch.cuda.max_memory_allocated``."""
        return max(self.allocated, default=0)

    @property
    def peak_reserved_bytes(self) -> int:
        """``torch.cuda.max_memory_reserved``."""
        return max(self.reserved, default=0)

    @property
    def peak_requested_bytes(self) -> int:
        """The peak of what was asked for, before any rounding (``requested_bytes.all.peak``)."""
        sizes: list[int] = []
        current = peak = 0
        for event in self.events[: len(self.allocated)]:
            if event > 0:
                sizes.append(event)
                current += event
                peak = max(peak, current)
            else:
                current -= sizes[~event]
        return peak


def replay(
    events: Sequence[int],
    *,
    settings: AllocatorSettings | None = None,
    capacity_bytes: int | None = None,
    outside_bytes: int = 0,
    streams: Sequence[int] | None = None,
    pools: Sequence[int] | None = None,
    placement: SegmentPlacement | None = None,
    empty_cache_before: Collection[int] = (),
    kernels_loaded_before: Mapping[int, int] | None = None,
) -> Replay:
    """Play ``events`` through a fresh allocator.

    A value above zero is an allocation of that many requested bytes; allocations are numbered 0, 1, 2 and
    so on. A value below zero is ``~number``: the free of that allocation. A request of 0 bytes allocates
    nothing in PyTorch and must not appear.

    ``streams`` and ``pools`` hold, for each allocation, its stream and its private pool; 0 is the default
    of both. ``capacity_bytes`` is the device's memory, of which ``outside_bytes`` are taken by the CUDA
    context, libraries and others; without a capacity memory never runs out.

    ``empty_cache_before`` are the events before which the script calls ``torch.cuda.empty_cache``;
    ``kernels_loaded_before`` says before which events new kernels take how many bytes.
    """
    make = stream_allocator if pools is None else CachingAllocator
    allocator = make(
        settings, capacity_bytes=capacity_bytes, outside_bytes=outside_bytes, placement=placement
    )
    allocated: list[int] = []
    reserved: list[int] = []
    done = 0
    loads = kernels_loaded_before or {}
    for stop in sorted({*empty_cache_before, *loads, len(events)}):
        whole = done == 0 and stop == len(events)
        part = events if whole else events[done:stop]
        if isinstance(allocator, CompiledAllocator):
            allocator.feed(part, allocated, reserved, streams=streams)
        else:
            allocator.feed(part, allocated, reserved, streams=streams, pools=pools)
        if allocator.oom is not None:
            break
        if stop in empty_cache_before:
            allocator.empty_cache()
        if stop in loads:
            allocator.load_kernels(loads[stop])
        done = stop
    return Replay(
        events=events,
        allocated=allocated,
        reserved=reserved,
        block_bytes=allocator.block_bytes,
        retries=allocator.retries,
        oom=allocator.oom,
    )
