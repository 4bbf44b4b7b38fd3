"""How the allocator gives memory back to the device, and when.

Source: ``release_cached_blocks``, ``release_available_cached_blocks`` and ``garbage_collect_cached_blocks``
in ``c10/cuda/CUDACachingAllocator.cpp``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from trainmem.allocator.expandable import unmap_idle_pages
from trainmem.allocator.memory import POSITION_BITS, POSITION_MASK, Heap, Memory
from trainmem.allocator.settings import MAX_BYTES_OF_SMALL_POOL

__all__ = ["collect_garbage", "release_idle_segments", "release_oversize_segments"]


def release_idle_segments(memory: Memory, freeable_pools: frozenset[int]) -> None:
    """Give back every segment, and every page of an expandable one, that holds no block.

    Segments of a private pool stay until their graph is gone and the pool is among ``freeable_pools``.
    """
    for base in memory.bases():
        segment = memory.segments[base]
        if segment.pool and segment.pool not in freeable_pools:
            continue
        if segment.is_expandable:
            unmap_idle_pages(memory, base)
        elif memory.is_idle(base):
            memory.free_segment(base)


def release_oversize_segments(memory: Memory, size: int, heap: Heap) -> bool:
    """Under ``max_split_size``: make room for ``size`` bytes by giving back unsplittable segments.

    One that is as large as the request when there is one, else the largest until their sum is; says whether
    it was enough.
    """
    limit = memory.settings.max_split_size_bytes
    if limit is None:
        return False
    free = heap.free(size <= MAX_BYTES_OF_SMALL_POOL)
    wanted = max(size, limit)
    index = bisect_left(free, wanted << POSITION_BITS)
    if index < len(free) and not _is_expandable(memory, free[index]):
        memory.free_segment(free[index] & POSITION_MASK)
        return True
    released = 0
    for key in reversed(free[:index]):
        if released >= wanted or key >> POSITION_BITS < limit:
            break
        if not _is_expandable(memory, key):
            memory.free_segment(key & POSITION_MASK)
            released += key >> POSITION_BITS
    return released >= wanted


def collect_garbage(memory: Memory, searches: int, idle_since: Mapping[int, int]) -> None:
    """Give back large segments, those idle longer than the average first, until the threshold is met.

    Age counts searches of the large pool since a segment became idle: ``searches`` so far, ``idle_since``
    then.
    """
    assert memory.cap_bytes is not None
    target = memory.reserved_bytes - int(memory.settings.garbage_collection_threshold * memory.cap_bytes)
    if target <= 0:
        return
    ages = {
        base: searches - idle_since.get(base, 0)
        for base, segment in memory.segments.items()
        if not (segment.is_small or segment.pool or segment.is_expandable) and memory.is_idle(base)
    }
    total, reclaimed = sum(ages.values()), 0
    while ages and reclaimed < target:
        average = total / len(ages)
        # The average falls while a round goes on, but PyTorch compares with that of the round's beginning.
        for base in [base for base, age in ages.items() if age >= average]:
            total -= ages.pop(base)
            reclaimed += memory.segments[base].size_bytes
            memory.free_segment(base)


def _is_expandable(memory: Memory, key: int) -> bool:
    return memory.segments[memory.base(key & POSITION_MASK)].is_expandable
