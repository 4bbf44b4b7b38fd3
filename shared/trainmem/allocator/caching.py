"""PyTorch's CUDA caching allocator, in plain Python.

Source: ``c10/cuda/CUDACachingAllocator.cpp`` and ``c10/core/AllocatorConfig.h`` (torch 2.11 to 2.13),
proved against recorded snapshots. In short: sizes are rounded up to 512 bytes; requests up to 1 MiB come
from the small pool, whose segments are 2 MiB, larger ones from the large pool (20 MiB segments below 10
MiB, else rounded up to 2 MiB); the smallest free block that fits is taken, the lowest address among equals;
its rest is split off when it is at least 512 bytes (small pool) or more than 1 MiB (large pool), and
otherwise stays with the block and counts as allocated; a freed block merges with its free neighbours.
Before a request fails, every idle segment is given back to the device and the request is tried once more.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trainmem.allocator.addresses import DeviceAddresses, SegmentPlacement
from trainmem.allocator.oom import AllocatorOutOfMemoryError, OutOfMemory
from trainmem.allocator.settings import (
    MAX_BYTES_OF_SMALL_POOL,
    MIN_BLOCK_BYTES,
    SMALL_SEGMENT_BYTES,
    AllocatorSettings,
)

__all__ = ["CachingAllocator", "Segment"]

# A free block is one integer, its size above its position, so that a sorted list of integers is ordered by
# size, then address, and best fit is one bisection.
_POSITION_BITS = 52
_POSITION_MASK = (1 << _POSITION_BITS) - 1
_ADDRESS_SPACE_BYTES = 1 << 40


@dataclass(slots=True)
class _Heap:
    """The free blocks of one stream in one pool (the default pool or a private one)."""

    pool: int
    stream: int
    small: list[int] = field(default_factory=list)
    large: list[int] = field(default_factory=list)
    unmapped_small: list[int] = field(default_factory=list)
    unmapped_large: list[int] = field(default_factory=list)

    def free(self, is_small: bool) -> list[int]:
        return self.small if is_small else self.large

    def unmapped(self, is_small: bool) -> list[int]:
        return self.unmapped_small if is_small else self.unmapped_large


@dataclass(slots=True)
class Segment:
    """Memory obtained from the device in one piece."""

    address: int
    size_bytes: int
    """The whole range of addresses, mapped or not, for an expandable segment."""

    is_small: bool
    is_expandable: bool
    stream: int
    pool: int


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
        fraction = self.settings.per_process_memory_fraction
        if capacity_bytes is None and fraction is not None:
            raise ValueError(
                "per_process_memory_fraction: it is a share of capacity_bytes, which is not given"
            )
        self.capacity_bytes = capacity_bytes
        self.outside_bytes = outside_bytes
        self.cap_bytes = (
            None if fraction is None or capacity_bytes is None else int(fraction * capacity_bytes)
        )
        self.allocated_bytes = 0
        self.reserved_bytes = 0
        self.retries = 0
        self.oom: OutOfMemory | None = None
        self.block_bytes: list[int] = []
        self._placement = placement if placement is not None else DeviceAddresses()
        # A position is twice the segment's address plus the offset in it: positions keep the order of
        # addresses, and segments that touch on the device do not touch here, so blocks never merge across
        # them.
        self._positions: list[int] = []
        self._free_size: dict[int, int] = {}
        self._free_start: dict[int, int] = {}
        self._unmapped_size: dict[int, int] = {}
        self._segments: dict[int, Segment] = {}
        self._bases: list[int] = []
        self._heaps: dict[tuple[int, int], _Heap] = {}
        self._heap_of: list[_Heap] = []
        self._searches = 0
        self._idle_since: dict[int, int] = {}

    def malloc(self, requested_bytes: int, *, stream: int = 0, pool: int = 0) -> int:
        """Allocate; the number of the allocation. Raises `AllocatorOutOfMemoryError`."""
        if requested_bytes <= 0:
            raise ValueError(f"requested_bytes: {requested_bytes} is not positive")
        number = len(self._positions)
        self.feed((requested_bytes,), [], [], streams={number: stream}, pools={number: pool})
        if self.oom is not None:
            detail, self.oom = self.oom, None
            raise AllocatorOutOfMemoryError(detail)
        return number

    def free(self, allocation: int) -> None:
        """Free an allocation: its block is at once open to the next request."""
        if allocation < 0:
            raise ValueError(f"allocation: {allocation} was never made")
        self.feed((~allocation,), [], [])

    def empty_cache(self) -> None:
        """Give every idle segment of the default pool back to the device."""
        self._release_idle_segments()

    def address(self, allocation: int) -> int:
        """The device address of a live allocation."""
        position = self._positions[allocation]
        if position < 0:
            raise ValueError(f"allocation: {allocation} was freed")
        return self._address(position)

    @property
    def segments(self) -> list[Segment]:
        """The segments held, by address."""
        return sorted(self._segments.values(), key=lambda segment: segment.address)

    def feed(
        self,
        events: Sequence[int],
        allocated: list[int],
        reserved: list[int],
        *,
        streams: Sequence[int] | Mapping[int, int] | None = None,
        pools: Sequence[int] | Mapping[int, int] | None = None,
    ) -> None:
        """Play events, appending the two counters after each; stops with `oom` set when memory runs out.

        An event above zero allocates that many bytes; ``~number`` frees allocation ``number``. ``streams``
        and ``pools`` say where an allocation lives, by its number; 0 is the default.
        """
        # Everything the loop touches is a local: this is the hot path of the exact estimate.
        settings = self.settings
        positions, block_bytes = self._positions, self.block_bytes
        free_size, free_start = self._free_size, self._free_start
        heap_of = self._heap_of
        heap = self._heap(0, 0)
        mixed = bool(heap_of) or streams is not None or pools is not None
        if mixed:
            heap_of.extend([heap] * (len(positions) - len(heap_of)))
        small, large = heap.small, heap.large
        small_limit, shift, mask = MAX_BYTES_OF_SMALL_POOL, _POSITION_BITS, _POSITION_MASK
        rounds_up = any(divisions > 1 for divisions in settings.roundup_power2_divisions)
        large_split = MIN_BLOCK_BYTES if settings.expandable_segments else MAX_BYTES_OF_SMALL_POOL + 1
        unsplittable = settings.max_split_size_bytes
        choosy = unsplittable is not None or settings.expandable_segments
        aging = self._collects_garbage
        idle_since = self._idle_since
        now_allocated, now_reserved = self.allocated_bytes, self.reserved_bytes
        base = len(reserved) - len(allocated)
        record = allocated.append

        for event in events:
            if event > 0:
                size = settings.rounded(event) if rounds_up else (event + 511) & -512
                if mixed:
                    number = len(positions)
                    heap = self._heap(pools[number] if pools else 0, streams[number] if streams else 0)
                    small, large = heap.small, heap.large
                if size <= small_limit:
                    free, least_rest = small, 512
                else:
                    free, least_rest = large, large_split
                    if unsplittable is not None and size >= unsplittable:
                        least_rest = mask
                    if aging:
                        self._searches += 1
                index = bisect_left(free, size << shift)
                if choosy:
                    index = self._choose(free, index, size)
                if index < len(free):
                    position = free.pop(index) & mask
                else:
                    self.allocated_bytes = now_allocated
                    found = self._obtain(event, size, heap, len(allocated))
                    reserved.extend([now_reserved] * (len(allocated) + base - len(reserved)))
                    now_reserved = self.reserved_bytes
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
                    heap_of.append(heap)
                now_allocated += size
            elif event:
                number = ~event
                if number >= len(positions) or positions[number] < 0:
                    raise ValueError(f"events: allocation {number} is freed, but is not live")
                position = positions[number]
                positions[number] = -1
                size = block_bytes[number]
                now_allocated -= size
                if mixed:
                    heap = heap_of[number]
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
                if aging:
                    idle_since[position] = self._searches
            else:
                raise ValueError("events: 0 is neither an allocation nor a free")
            record(now_allocated)
        self.allocated_bytes = now_allocated
        reserved.extend([now_reserved] * (len(allocated) + base - len(reserved)))

    @property
    def _collects_garbage(self) -> bool:
        return self.settings.garbage_collection_threshold > 0 and self.cap_bytes is not None

    def _heap(self, pool: int, stream: int) -> _Heap:
        heap = self._heaps.get((pool, stream))
        if heap is None:
            heap = self._heaps[pool, stream] = _Heap(pool=pool, stream=stream)
        return heap

    def _address(self, position: int) -> int:
        base = self._base(position)
        return self._segments[base].address + position - base

    def _base(self, position: int) -> int:
        return self._bases[bisect_right(self._bases, position) - 1]

    def _choose(self, free: list[int], index: int, size: int) -> int:
        """The block best fit settles on under settings that change its rule; ``len(free)`` for none."""
        last = len(free)
        if index == last:
            return last
        if self.settings.expandable_segments:
            # A block that could still grow counts as large as it could become, so that it is taken last.
            room = self._room(free[index])
            for other in range(index + 1, last):
                other_room = self._room(free[other])
                if other_room >= room:
                    break
                index, room = other, other_room
        limit = self.settings.max_split_size_bytes
        if limit is not None and size > MAX_BYTES_OF_SMALL_POOL:
            block = free[index] >> _POSITION_BITS
            if size < limit <= block:
                return last
            if size >= limit and block >= size + self.settings.max_non_split_rounding_bytes:
                return last
        return index

    def _room(self, key: int) -> int:
        size = key >> _POSITION_BITS
        return size + self._unmapped_size.get((key & _POSITION_MASK) + size, 0)

    def _obtain(self, requested: int, size: int, heap: _Heap, event_index: int) -> int | None:
        """Position of a free block of ``size`` or more, not in its heap's list; ``None`` when out of memory."""
        segment = self.settings.segment_bytes(size)
        if self._collects_garbage:
            self._collect_garbage()
        position = self._reserve(segment, size, heap)
        if position is None and self._release_oversize(size, heap):
            position = self._reserve(segment, size, heap)
        if position is None:
            self._release_idle_segments()
            self.retries += 1
            position = self._reserve(segment, size, heap)
        if position is None:
            assert self.capacity_bytes is not None
            private = [
                self.block_bytes[number]
                for number, owner in enumerate(self._heap_of)
                if owner.pool and self._positions[number] >= 0
            ]
            self.oom = OutOfMemory(
                event_index=event_index,
                requested_bytes=requested,
                tried_bytes=segment,
                allocated_bytes=self.allocated_bytes,
                reserved_bytes=self.reserved_bytes,
                private_pool_bytes=sum(private),
                capacity_bytes=self.capacity_bytes,
                outside_bytes=self.outside_bytes,
                cap_bytes=self.cap_bytes,
            )
        return position

    def _reserve(self, segment_bytes: int, size: int, heap: _Heap) -> int | None:
        if self.cap_bytes is not None and self.reserved_bytes + segment_bytes > self.cap_bytes:
            return None
        is_small = size <= MAX_BYTES_OF_SMALL_POOL
        if self.settings.expandable_segments:
            return self._expand(segment_bytes, heap, is_small)
        if not self._device_has(segment_bytes):
            return None
        base = self._add_segment(segment_bytes, heap, is_small, is_expandable=False)
        self.reserved_bytes += segment_bytes
        self._free_size[base] = segment_bytes
        self._free_start[base + segment_bytes] = base
        return base

    def _device_has(self, size: int) -> bool:
        if self.capacity_bytes is None:
            return True
        return self.outside_bytes + self.reserved_bytes + size <= self.capacity_bytes

    def _add_segment(self, size: int, heap: _Heap, is_small: bool, *, is_expandable: bool) -> int:
        address = self._placement.place(size)
        base = 2 * address
        self._segments[base] = Segment(
            address=address,
            size_bytes=size,
            is_small=is_small,
            is_expandable=is_expandable,
            stream=heap.stream,
            pool=heap.pool,
        )
        insort(self._bases, base)
        return base

    def _drop_segment(self, base: int) -> None:
        segment = self._segments.pop(base)
        self._placement.release(segment.address, segment.size_bytes)
        del self._bases[bisect_left(self._bases, base)]

    def _release_segment(self, base: int) -> None:
        segment = self._segments[base]
        heap = self._heap(segment.pool, segment.stream)
        self._take_free(heap.free(segment.is_small), base)
        self.reserved_bytes -= segment.size_bytes
        self._drop_segment(base)

    def _take_free(self, free: list[int], position: int) -> int:
        """Remove a free block from its list and both maps; its size."""
        size = self._free_size.pop(position)
        del self._free_start[position + size]
        index = bisect_left(free, size << _POSITION_BITS | position)
        if index < len(free) and free[index] == size << _POSITION_BITS | position:
            del free[index]
        return size

    def _is_idle(self, base: int) -> bool:
        return self._free_size.get(base) == self._segments[base].size_bytes

    def _release_idle_segments(self) -> None:
        for base in list(self._bases):
            segment = self._segments[base]
            if segment.pool:
                continue
            if segment.is_expandable:
                self._unmap_idle_pages(base)
            elif self._is_idle(base):
                self._release_segment(base)

    def _release_oversize(self, size: int, heap: _Heap) -> bool:
        """Under ``max_split_size``: give back one idle segment of the request's size, else the largest."""
        limit = self.settings.max_split_size_bytes
        if limit is None:
            return False
        free = heap.free(size <= MAX_BYTES_OF_SMALL_POOL)
        wanted = max(size, limit)
        index = bisect_left(free, wanted << _POSITION_BITS)
        if index < len(free):
            position = free[index] & _POSITION_MASK
            if self._segments[self._base(position)].is_expandable:
                return False
            self._release_segment(position)
            return True
        released = 0
        for key in reversed(free[:index]):
            if released >= wanted or key >> _POSITION_BITS < limit:
                break
            position = key & _POSITION_MASK
            if not self._segments[self._base(position)].is_expandable:
                self._release_segment(position)
                released += key >> _POSITION_BITS
        return released >= wanted

    def _collect_garbage(self) -> None:
        """Give back the large segments that were idle longest, until reserved is below the threshold."""
        assert self.cap_bytes is not None
        target = self.reserved_bytes - int(self.settings.garbage_collection_threshold * self.cap_bytes)
        if target <= 0:
            return
        ages = {
            position: self._searches - self._idle_since.get(position, 0)
            for position in self._idle_large_segments()
        }
        reclaimed = 0
        while ages and reclaimed < target:
            threshold = sum(ages.values()) // len(ages)
            old = [position for position, age in ages.items() if age >= threshold]
            if not old:
                break
            for position in old:
                del ages[position]
                reclaimed += self._segments[position].size_bytes
                self._release_segment(position)

    def _idle_large_segments(self) -> list[int]:
        return [
            base
            for base, segment in self._segments.items()
            if not (segment.is_small or segment.pool or segment.is_expandable) and self._is_idle(base)
        ]

    def _expand(self, size: int, heap: _Heap, is_small: bool) -> int | None:
        """Map pages at the lowest place where ``size`` bytes fit, free blocks that lie there included."""
        start = self._find_room(size, heap, is_small)
        free, unmapped = heap.free(is_small), heap.unmapped(is_small)
        if start in self._unmapped_size:
            mapped = self._map(start, size, free, unmapped, is_small)
            if mapped is None:
                return None
            start = mapped
        while self._free_size[start] < size:
            end = start + self._free_size[start]
            if end in self._unmapped_size:
                mapped = self._map(end, size - self._free_size[start], free, unmapped, is_small)
                if mapped is None:
                    return None
                start = mapped
        index = bisect_left(free, self._free_size[start] << _POSITION_BITS | start)
        del free[index]
        return start

    def _find_room(self, size: int, heap: _Heap, is_small: bool) -> int:
        for start in heap.unmapped(is_small):
            start = self._free_start.get(start, start)
            end = start
            while end - start < size:
                step = self._free_size.get(end) or self._unmapped_size.get(end)
                if not step:
                    break
                end += step
            if end - start >= size:
                return start
        base = self._add_segment(_ADDRESS_SPACE_BYTES, heap, is_small, is_expandable=True)
        self._unmapped_size[base] = _ADDRESS_SPACE_BYTES
        insort(heap.unmapped(is_small), base)
        return base

    def _map(self, start: int, size: int, free: list[int], unmapped: list[int], is_small: bool) -> int | None:
        """Back ``size`` bytes from ``start`` with whole pages; where the free block that results begins."""
        page = SMALL_SEGMENT_BYTES if is_small else self.settings.large_segment_size_bytes
        room = self._unmapped_size[start]
        size = -(-min(size, room) // page) * page
        if not self._device_has(size):
            return None
        del self._unmapped_size[start]
        del unmapped[bisect_left(unmapped, start)]
        if size < room:
            self._unmapped_size[start + size] = room - size
            insort(unmapped, start + size)
        self.reserved_bytes += size
        return self._insert_free(free, start, size)

    def _insert_free(self, free: list[int], start: int, size: int) -> int:
        end = start + size
        if end in self._free_size:
            end += self._take_free(free, end)
        if start in self._free_start:
            before = self._free_start[start]
            self._take_free(free, before)
            start = before
        self._free_size[start] = end - start
        self._free_start[end] = start
        insort(free, end - start << _POSITION_BITS | start)
        return start

    def _unmap_idle_pages(self, base: int) -> None:
        """Give back every page of an expandable segment that no block touches."""
        segment = self._segments[base]
        page = SMALL_SEGMENT_BYTES if segment.is_small else self.settings.large_segment_size_bytes
        heap = self._heap(segment.pool, segment.stream)
        free, unmapped = heap.free(segment.is_small), heap.unmapped(segment.is_small)
        last = base + segment.size_bytes
        for key in list(free):
            size, start = key >> _POSITION_BITS, key & _POSITION_MASK
            if not base <= start < last:
                continue
            end = start + size
            first_page = base + -(-(start - base) // page) * page
            last_page = base + (end - base) // page * page
            if first_page >= last_page:
                continue
            self._take_free(free, start)
            if first_page > start:
                self._insert_free(free, start, first_page - start)
            if end > last_page:
                self._insert_free(free, last_page, end - last_page)
            self.reserved_bytes -= last_page - first_page
            self._insert_unmapped(unmapped, first_page, last_page)
        if self._unmapped_size.get(base) == segment.size_bytes:
            del self._unmapped_size[base]
            del unmapped[bisect_left(unmapped, base)]
            self._drop_segment(base)

    def _insert_unmapped(self, unmapped: list[int], start: int, end: int) -> None:
        index = bisect_left(unmapped, start)
        if end in self._unmapped_size:
            end += self._unmapped_size.pop(end)
            del unmapped[index]
        if index and unmapped[index - 1] + self._unmapped_size[unmapped[index - 1]] == start:
            self._unmapped_size[unmapped[index - 1]] += end - start
        else:
            self._unmapped_size[start] = end - start
            unmapped.insert(index, start)
