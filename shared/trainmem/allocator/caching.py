"""PyTorch's CUDA caching allocator, in plain Python.

Source: ``c10/cuda/CUDACachingAllocator.cpp`` and ``c10/core/AllocatorConfig.h`` (torch 2.11 to 2.13),
proved against recorded snapshots. In short: sizes are rounded up to 512 bytes; requests up to 1 MiB come
from the small pool, whose segments are 2 MiB, larger ones from the large pool (20 MiB segments below 10
MiB, else rounded up to 2 MiB); the smallest free block that fits is taken, the lowest address among equals;
its rest is split off when it is at least 512 bytes (small pool) or more than 1 MiB (large pool), and
otherwise stays with the block and counts as allocated; a freed block merges with its free neighbours.
Before a request fails, every idle segment is given back to the device and the request is tried once more.

Left out: user pools with an allocator of their own (``torch.cuda.MemPool(allocator)``, ``use_on_oom``,
``no_split``), checkpoints of private pools, and the ``cudaMallocAsync`` backend.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence

from trainmem.allocator.addresses import DeviceAddresses, SegmentPlacement
from trainmem.allocator.expandable import expand
from trainmem.allocator.memory import (
    POSITION_BITS,
    POSITION_MASK,
    Heap,
    MappedRange,
    Memory,
    Segment,
    SegmentAction,
)
from trainmem.allocator.oom import AllocatorOutOfMemoryError, OutOfMemory
from trainmem.allocator.reclaim import collect_garbage, release_idle_segments, release_oversize_segments
from trainmem.allocator.settings import MAX_BYTES_OF_SMALL_POOL, MIN_BLOCK_BYTES, AllocatorSettings

__all__ = ["CachingAllocator"]

ByAllocation = Sequence[int] | Mapping[int, int]


class CachingAllocator:
    """The allocator of one device.

    ``feed`` takes a stream of events and is the fast way; ``malloc``, ``free`` and ``empty_cache`` are the
    same code one step at a time. Allocations are numbered from 0 in order; that number names the block.
    """

    def __init__(
        self,
        settings: AllocatorSettings | None = None,
        *,
        capacity_bytes: int | None = None,
        outside_bytes: int = 0,
        placement: SegmentPlacement | None = None,
    ) -> None:
        self.settings = settings if settings is not None else AllocatorSettings()
        self.allocated_bytes = 0
        self.retries = 0
        """How often every idle segment was given back because the device was full."""
        self.oom: OutOfMemory | None = None
        self.block_bytes: list[int] = []
        """Size of the block that each allocation got, by its number."""
        self._memory = Memory(
            self.settings,
            placement if placement is not None else DeviceAddresses(),
            capacity_bytes=capacity_bytes,
            outside_bytes=outside_bytes,
        )
        self._collects_garbage = (
            self.settings.garbage_collection_threshold > 0 and self._memory.cap_bytes is not None
        )
        self._positions: list[int] = []
        self._owners: list[Heap] = []
        self._waiting: list[int] = []
        self._freeable_pools: set[int] = set()
        self._searches = 0
        self._idle_since: dict[int, int] = {}

    @property
    def allocations(self) -> int:
        """How many there were so far."""
        return len(self.block_bytes)

    @property
    def reserved_bytes(self) -> int:
        """What ``torch.cuda.memory_reserved`` reads."""
        return self._memory.reserved_bytes

    def blocks(self, first: int) -> tuple[dict[int, int], list[int]]:
        """Sizes of free blocks by their positions, and positions of allocations from ``first`` on, -1 once freed."""
        return self._memory.free_size.copy(), self._positions[first:]

    @property
    def segments(self) -> list[Segment]:
        """The segments held, by address."""
        return [self._memory.segments[base] for base in self._memory.bases()]

    @property
    def mapped_ranges(self) -> list[MappedRange]:
        """The memory held, by address, with the live and free blocks in it."""
        return self._memory.mapped_ranges(
            (position, self.block_bytes[allocation], allocation)
            for allocation, position in enumerate(self._positions)
            if position >= 0
        )

    def address(self, allocation: int) -> int:
        """The device address of a live allocation."""
        position = self._positions[allocation]
        if position < 0:
            raise ValueError(f"allocation: {allocation} was freed")
        return self._memory.address(position)

    def keep_journal(self) -> list[SegmentAction]:
        """From now on every segment taken or given back is appended to the list returned.

        An entry is the action as snapshots name it, the device address, the size, the stream and the pool.
        """
        self._memory.journal = []
        return self._memory.journal

    def malloc(self, requested_bytes: int, *, stream: int = 0, pool: int = 0) -> int:
        """Allocate; the number of the allocation. Raises `AllocatorOutOfMemoryError`."""
        if requested_bytes <= 0:
            raise ValueError(f"requested_bytes: {requested_bytes} is not positive")
        number = len(self._positions)
        streams = {number: stream} if stream or pool else None
        pools = {number: pool} if stream or pool else None
        self.feed((requested_bytes,), [], [], streams=streams, pools=pools)
        if self.oom is not None:
            detail, self.oom = self.oom, None
            raise AllocatorOutOfMemoryError(detail)
        return number

    def free(self, allocation: int) -> None:
        """Free an allocation: its block is at once open to the next request."""
        if allocation < 0:
            raise ValueError(f"allocation: {allocation} was never made")
        self.feed((~allocation,), [], [])

    def request_free(self, allocation: int) -> None:
        """Free a block that another stream still uses (``record_stream``).

        It no longer counts as allocated, but stays closed until `finish_free`. Running out of memory finishes
        every such free.
        """
        is_live = 0 <= allocation < len(self._positions) and self._positions[allocation] >= 0
        if not is_live or allocation in self._waiting:
            raise ValueError(f"allocation: {allocation} is not live")
        self.allocated_bytes -= self.block_bytes[allocation]
        self._waiting.append(allocation)

    def finish_free(self, allocation: int) -> None:
        """The other stream is done with a block given to `request_free`."""
        if allocation in self._waiting:
            self._waiting.remove(allocation)
            self._open(allocation)

    def empty_cache(self) -> None:
        """``torch.cuda.empty_cache``: give every idle segment of the default pool back to the device."""
        while self._waiting:
            self._open(self._waiting.pop())
        release_idle_segments(self._memory, frozenset(self._freeable_pools))

    def load_kernels(self, size_bytes: int) -> None:
        """Kernels used for the first time take addresses that segments could have had; no counter shows them."""
        self._memory.placement.load_kernels(size_bytes)

    def release_pool(self, pool: int) -> None:
        """The graphs of a private pool are gone: `empty_cache` may give back its segments too."""
        self._freeable_pools.add(pool)

    def feed(
        self,
        events: Sequence[int],
        allocated: list[int],
        reserved: list[int],
        *,
        streams: ByAllocation | None = None,
        pools: ByAllocation | None = None,
    ) -> None:
        """Play events, appending the two counters after each; stops with ``oom`` set when memory runs out.

        An event above zero allocates that many bytes; ``~number`` frees allocation ``number``. ``streams``
        and ``pools`` say where an allocation lives, by its number; 0 is the default.
        """
        # Everything the loop touches is a local, and nothing that happens often is a call: this is the hot
        # path of the exact estimate.
        memory, settings = self._memory, self.settings
        positions, block_bytes, owners = self._positions, self.block_bytes, self._owners
        free_size, free_start = memory.free_size, memory.free_start
        heap = memory.heap(0, 0)
        mixed = bool(owners) or streams is not None or pools is not None
        if mixed:
            owners.extend([heap] * (len(positions) - len(owners)))
        small, large = heap.small, heap.large
        small_limit, shift, mask = MAX_BYTES_OF_SMALL_POOL, POSITION_BITS, POSITION_MASK
        rounds_up = any(divisions > 1 for divisions in settings.roundup_power2_divisions)
        is_expandable, unsplittable = settings.expandable_segments, settings.max_split_size_bytes
        large_rest = MIN_BLOCK_BYTES if is_expandable else MAX_BYTES_OF_SMALL_POOL + 1
        is_choosy = is_expandable or unsplittable is not None
        collects_garbage, idle_since = self._collects_garbage, self._idle_since
        now_allocated, now_reserved = self.allocated_bytes, memory.reserved_bytes
        lead = len(reserved) - len(allocated)
        record = allocated.append

        for event in events:
            if event > 0:
                size = settings.rounded(event) if rounds_up else event + 511 & -512
                if mixed:
                    number = len(positions)
                    heap = memory.heap(pools[number] if pools else 0, streams[number] if streams else 0)
                    small, large = heap.small, heap.large
                if size <= small_limit:
                    free, least_rest = small, 512
                else:
                    free, least_rest = large, large_rest
                    if unsplittable is not None and size >= unsplittable and not is_expandable:
                        least_rest = mask
                    if collects_garbage and not heap.pool:
                        self._searches += 1
                index = bisect_left(free, size << shift)
                if is_choosy:
                    index = self._choose(free, index, size)
                if index < len(free):
                    position = free.pop(index) & mask
                else:
                    self.allocated_bytes = now_allocated
                    found = self._obtain(event, size, heap, len(allocated))
                    reserved.extend([now_reserved] * (len(allocated) + lead - len(reserved)))
                    now_reserved = memory.reserved_bytes
                    if found is None:
                        break
                    position = found
                have = free_size.pop(position)
                rest = have - size
                if rest >= least_rest:
                    rest_position = position + size
                    free_size[rest_position] = rest
                    free_start[position + have] = rest_position
                    insort(free, rest << shift | rest_position)
                else:
                    del free_start[position + have]
                    size = have
                positions.append(position)
                block_bytes.append(size)
                if mixed:
                    owners.append(heap)
                now_allocated += size
            elif event:
                number = ~event
                try:
                    position = positions[number]
                except IndexError:
                    position = -1
                if position < 0:
                    raise ValueError(f"events: allocation {number} is freed, but is not live")
                positions[number] = -1
                size = block_bytes[number]
                now_allocated -= size
                if mixed:
                    heap = owners[number]
                    small, large = heap.small, heap.large
                free = small if size <= small_limit else large
                end = position + size
                behind = free_size.pop(end, 0)
                if behind:
                    del free[bisect_left(free, behind << shift | end)]
                    end += behind
                before = free_start.pop(position, -1)
                if before >= 0:
                    del free[bisect_left(free, free_size.pop(before) << shift | before)]
                    position = before
                free_size[position] = size = end - position
                free_start[end] = position
                insort(free, size << shift | position)
                if collects_garbage:
                    idle_since[position] = self._searches
            else:
                raise ValueError("events: 0 is neither an allocation nor a free")
            record(now_allocated)
        self.allocated_bytes = now_allocated
        reserved.extend([now_reserved] * (len(allocated) + lead - len(reserved)))

    def highest(
        self, events: Sequence[int], streams: ByAllocation | None = None, *, later: int = 0
    ) -> int | None:
        """Plays events: the highest allocated bytes after any of them, None where memory runs out.

        ``later``: they free the allocations that come so many after those they name.
        """
        allocated: list[int] = []
        if later:
            events = [event if event > 0 else event - later for event in events]
        self.feed(events, allocated, [], streams=streams)
        return None if self.oom is not None else max(allocated, default=0)

    def _choose(self, free: list[int], index: int, size: int) -> int:
        """The block best fit settles on under settings that change its rule; ``len(free)`` for none."""
        if index == len(free):
            return index
        if self.settings.expandable_segments:
            # A block that could still grow counts as large as it could become, so that it is taken last.
            room = self._room(free[index])
            for other in range(index + 1, len(free)):
                other_room = self._room(free[other])
                if other_room >= room:
                    break
                index, room = other, other_room
        limit = self.settings.max_split_size_bytes
        if limit is not None:
            block = free[index] >> POSITION_BITS
            if size < limit <= block:
                return len(free)
            if size >= limit and block >= size + self.settings.max_non_split_rounding_bytes:
                return len(free)
        return index

    def _room(self, key: int) -> int:
        size = key >> POSITION_BITS
        return size + self._memory.unmapped_size.get((key & POSITION_MASK) + size, 0)

    def _obtain(self, requested: int, size: int, heap: Heap, event_index: int) -> int | None:
        """Position of a free block of ``size`` or more, not in its list; ``None`` when out of memory."""
        if self._collects_garbage:
            collect_garbage(self._memory, self._searches, self._idle_since)
        segment = self.settings.segment_bytes(size)
        position = self._reserve(segment, size, heap)
        if position is None and release_oversize_segments(self._memory, size, heap):
            position = self._reserve(segment, size, heap)
        # A private pool is used while a graph is captured, when nothing may be given back.
        if position is None and not heap.pool:
            self.empty_cache()
            self.retries += 1
            position = self._reserve(segment, size, heap)
        if position is None:
            self.oom = self._out_of_memory(requested, segment, event_index)
        return position

    def _reserve(self, segment: int, size: int, heap: Heap) -> int | None:
        memory = self._memory
        if memory.cap_bytes is not None and memory.reserved_bytes + segment > memory.cap_bytes:
            return None
        is_small = size <= MAX_BYTES_OF_SMALL_POOL
        if self.settings.expandable_segments:
            return expand(memory, size, heap, is_small)
        return memory.malloc_segment(segment, heap, is_small)

    def _out_of_memory(self, requested: int, segment: int, event_index: int) -> OutOfMemory:
        memory = self._memory
        assert memory.capacity_bytes is not None
        private = [heap for (pool, _), heap in memory.heaps.items() if pool]
        return OutOfMemory(
            event_index=event_index,
            requested_bytes=requested,
            tried_bytes=segment,
            allocated_bytes=self.allocated_bytes,
            reserved_bytes=memory.reserved_bytes,
            idle_private_bytes=sum(
                key >> POSITION_BITS for heap in private for key in (*heap.small, *heap.large)
            ),
            capacity_bytes=memory.capacity_bytes,
            outside_bytes=memory.outside_bytes,
            cap_bytes=memory.cap_bytes,
        )

    def _open(self, allocation: int) -> None:
        size, position = self.block_bytes[allocation], self._positions[allocation]
        heap = self._owners[allocation] if self._owners else self._memory.heap(0, 0)
        self._positions[allocation] = -1
        start = self._memory.insert_free(heap.free(size <= MAX_BYTES_OF_SMALL_POOL), position, size)
        self._idle_since[start] = self._searches
