"""Expandable segments: one range of addresses per pool and stream, backed with pages as it grows.

Source: ``ExpandableSegment``, ``find_expandable_block``, ``map_block`` and ``unmap_block`` in
``c10/cuda/CUDACachingAllocator.cpp``. Pages are 2 MiB in the small pool and 20 MiB in the large one, and
each is mapped and unmapped as a whole. A segment's range is 1 1/8 of the device's memory, so that it never
runs out before the memory does.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from trainmem.allocator.memory import POSITION_BITS, POSITION_MASK, Heap, Memory

__all__ = ["expand", "unmap_idle_pages"]

_RANGE_OF_AN_UNKNOWN_DEVICE_BYTES = 1 << 40


def expand(memory: Memory, size: int, heap: Heap, is_small: bool) -> int | None:
    """Map pages at the lowest place where ``size`` bytes fit, free blocks that lie there included.

    The result is the position of a free block that was taken from its heap's list; ``None`` when the device
    has no more pages.
    """
    start = _find_room(memory, size, heap, is_small)
    while memory.free_size.get(start, 0) < size:
        mapped = memory.free_size.get(start, 0)
        if not _map(memory, start + mapped, size - mapped, heap):
            return None
    free = heap.free(is_small)
    del free[bisect_left(free, memory.free_size[start] << POSITION_BITS | start)]
    return start


def unmap_idle_pages(memory: Memory, base: int) -> None:
    """Give back every page of an expandable segment that no block touches."""
    segment = memory.segments[base]
    heap = memory.heap_of(segment)
    free, page = heap.free(segment.is_small), segment.page_bytes
    for key in free.copy():
        size, start = key >> POSITION_BITS, key & POSITION_MASK
        if not base <= start < base + segment.size_bytes:
            continue
        end = start + size
        first = base + -(-(start - base) // page) * page
        last = base + (end - base) // page * page
        if first >= last:
            continue
        memory.take_free(free, start)
        if first > start:
            memory.insert_free(free, start, first - start)
        if end > last:
            memory.insert_free(free, last, end - last)
        memory.count("segment_unmap", first, last - first, heap)
        _insert_unmapped(memory, heap.unmapped(segment.is_small), first, last)
        if memory.unmapped_size.get(base) == segment.size_bytes:
            heap.unmapped(segment.is_small).remove(base)
            del memory.unmapped_size[base]
            memory.drop_segment(base)


def _find_room(memory: Memory, size: int, heap: Heap, is_small: bool) -> int:
    for unmapped in heap.unmapped(is_small):
        start = end = memory.free_start.get(unmapped, unmapped)
        while end - start < size:
            step = memory.free_size.get(end) or memory.unmapped_size.get(end)
            if step is None:
                break
            end += step
        else:
            return start
    base = memory.add_segment(_range_bytes(memory, is_small), heap, is_small, is_expandable=True)
    memory.unmapped_size[base] = memory.segments[base].size_bytes
    insort(heap.unmapped(is_small), base)
    return base


def _range_bytes(memory: Memory, is_small: bool) -> int:
    page = memory.page_bytes(is_small)
    if memory.capacity_bytes is None:
        size = _RANGE_OF_AN_UNKNOWN_DEVICE_BYTES
    else:
        size = memory.capacity_bytes + memory.capacity_bytes // 8
    return -(-size // page) * page


def _map(memory: Memory, start: int, size: int, heap: Heap) -> bool:
    """Back ``size`` bytes from ``start`` with whole pages, which join the free blocks around them."""
    segment = memory.segments[memory.base(start)]
    room = memory.unmapped_size[start]
    size = -(-min(size, room) // segment.page_bytes) * segment.page_bytes
    if not memory.device_has(size):
        return False
    unmapped = heap.unmapped(segment.is_small)
    del memory.unmapped_size[start]
    unmapped.remove(start)
    if size < room:
        memory.unmapped_size[start + size] = room - size
        insort(unmapped, start + size)
    memory.count("segment_map", start, size, heap)
    memory.insert_free(heap.free(segment.is_small), start, size)
    return True


def _insert_unmapped(memory: Memory, unmapped: list[int], start: int, end: int) -> None:
    index = bisect_left(unmapped, start)
    if end in memory.unmapped_size:
        end += memory.unmapped_size.pop(end)
        del unmapped[index]
    before = unmapped[index - 1] if index else None
    if before is not None and before + memory.unmapped_size[before] == start:
        memory.unmapped_size[before] += end - start
    else:
        memory.unmapped_size[start] = end - start
        unmapped.insert(index, start)
