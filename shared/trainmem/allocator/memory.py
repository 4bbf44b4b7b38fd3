"""The allocator's books: segments, their free blocks and what the device still has.

A *position* is twice the address of a block's segment plus the block's offset in it. Positions keep the
order of addresses, and segments that touch on the device do not touch here, so blocks never merge across
segments.

A free block is kept as one integer, its size above its position: a sorted list of them is ordered by size,
then by address, so that best fit is one bisection.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from trainmem.allocator.addresses import SegmentPlacement
from trainmem.allocator.settings import SMALL_SEGMENT_BYTES, AllocatorSettings

__all__ = [
    "POSITION_BITS",
    "POSITION_MASK",
    "Block",
    "Heap",
    "MappedRange",
    "Memory",
    "Segment",
    "SegmentAction",
]

POSITION_BITS = 52
POSITION_MASK = (1 << POSITION_BITS) - 1

SegmentAction = tuple[
    Literal["segment_alloc", "segment_free", "segment_map", "segment_unmap"], int, int, int, int
]


@dataclass(slots=True)
class Heap:
    """The free blocks of one stream in one pool (0 is the default pool, others are private)."""

    pool: int
    stream: int
    small: list[int] = field(default_factory=list)
    large: list[int] = field(default_factory=list)
    unmapped_small: list[int] = field(default_factory=list)
    unmapped_large: list[int] = field(default_factory=list)

    def free(self, is_small: bool) -> list[int]:
        """Free blocks of one size class, as sorted integers."""
        return self.small if is_small else self.large

    def unmapped(self, is_small: bool) -> list[int]:
        """Positions, in order, where an expandable segment has addresses but no memory."""
        return self.unmapped_small if is_small else self.unmapped_large


@dataclass(slots=True)
class Segment:
    """A range of device addresses that blocks are cut from."""

    address: int
    size_bytes: int
    """The whole range of addresses, mapped or not, for an expandable segment."""

    is_small: bool
    is_expandable: bool
    stream: int
    pool: int
    page_bytes: int
    """What an expandable segment maps at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A piece of a segment."""

    address: int
    size_bytes: int
    allocation: int | None
    """The number of the allocation that has it; ``None`` when it is free."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MappedRange:
    """Memory without gaps: a whole segment, or what an expandable one has mapped in one stretch."""

    segment: Segment
    blocks: list[Block]

    @property
    def address(self) -> int:
        """Where it begins."""
        return self.blocks[0].address

    @property
    def size_bytes(self) -> int:
        """What it counts in reserved memory."""
        return sum(block.size_bytes for block in self.blocks)


class Memory:
    """Segments and free blocks of one device."""

    def __init__(
        self,
        settings: AllocatorSettings,
        placement: SegmentPlacement,
        *,
        capacity_bytes: int | None,
        outside_bytes: int,
    ) -> None:
        fraction = settings.per_process_memory_fraction
        if capacity_bytes is None and fraction < 1:
            raise ValueError(
                f"per_process_memory_fraction: {fraction} is a share of capacity_bytes, which is not given"
            )
        self.settings = settings
        self.placement = placement
        self.capacity_bytes = capacity_bytes
        self.outside_bytes = outside_bytes
        self.cap_bytes = None if capacity_bytes is None or fraction >= 1 else int(fraction * capacity_bytes)
        self.reserved_bytes = 0
        self.free_size: dict[int, int] = {}
        """Size of the free block at a position."""
        self.free_start: dict[int, int] = {}
        """Position of the free block that ends at a position."""
        self.unmapped_size: dict[int, int] = {}
        self.segments: dict[int, Segment] = {}
        self.heaps: dict[tuple[int, int], Heap] = {}
        self.journal: list[SegmentAction] | None = None
        self._bases: list[int] = []

    def heap(self, pool: int, stream: int) -> Heap:
        """The heap of a stream in a pool, made when it is first used."""
        heap = self.heaps.get((pool, stream))
        if heap is None:
            heap = self.heaps[pool, stream] = Heap(pool=pool, stream=stream)
        return heap

    def heap_of(self, segment: Segment) -> Heap:
        """The heap that a segment's free blocks belong to."""
        return self.heap(segment.pool, segment.stream)

    def base(self, position: int) -> int:
        """Position at which the segment around ``position`` begins."""
        return self._bases[bisect_right(self._bases, position) - 1]

    def address(self, position: int) -> int:
        """Device address of a position."""
        base = self.base(position)
        return base // 2 + position - base

    def bases(self) -> Iterator[int]:
        """Where each segment begins, by address; segments may be dropped meanwhile."""
        return iter(self._bases.copy())

    def page_bytes(self, is_small: bool) -> int:
        """What an expandable segment maps at a time."""
        return SMALL_SEGMENT_BYTES if is_small else self.settings.large_segment_size_bytes

    def device_has(self, size: int) -> bool:
        """Whether the device can still give ``size`` bytes."""
        if self.capacity_bytes is None:
            return True
        return self.outside_bytes + self.reserved_bytes + size <= self.capacity_bytes

    def is_idle(self, base: int) -> bool:
        """Whether a segment is one free block."""
        return self.free_size.get(base) == self.segments[base].size_bytes

    def add_segment(self, size: int, heap: Heap, is_small: bool, *, is_expandable: bool) -> int:
        """Take addresses for a new segment; its base."""
        address = self.placement.place(size)
        base = 2 * address
        self.segments[base] = Segment(
            address=address,
            size_bytes=size,
            is_small=is_small,
            is_expandable=is_expandable,
            stream=heap.stream,
            pool=heap.pool,
            page_bytes=self.page_bytes(is_small),
        )
        insort(self._bases, base)
        return base

    def drop_segment(self, base: int) -> None:
        """Give a segment's addresses back."""
        segment = self.segments.pop(base)
        self.placement.release(segment.address, segment.size_bytes)
        del self._bases[bisect_left(self._bases, base)]

    def malloc_segment(self, size: int, heap: Heap, is_small: bool) -> int | None:
        """``cudaMalloc``: a new segment as one free block that is not in its heap's list yet."""
        if not self.device_has(size):
            return None
        base = self.add_segment(size, heap, is_small, is_expandable=False)
        self.free_size[base] = size
        self.free_start[base + size] = base
        self.count("segment_alloc", base, size, heap)
        return base

    def free_segment(self, base: int) -> None:
        """``cudaFree`` of an idle segment."""
        segment = self.segments[base]
        heap = self.heap_of(segment)
        self.take_free(heap.free(segment.is_small), base)
        self.count("segment_free", base, segment.size_bytes, heap)
        self.drop_segment(base)

    def mapped_ranges(self, live: Iterable[tuple[int, int, int]]) -> list[MappedRange]:
        """All memory held, block by block, given the live blocks as (position, size, allocation)."""
        blocks = sorted([*live, *((start, size, -1) for start, size in self.free_size.items())])
        ranges: list[MappedRange] = []
        end = -1
        for position, size, allocation in blocks:
            if position != end or position in self.segments:
                ranges.append(MappedRange(segment=self.segments[self.base(position)], blocks=[]))
            ranges[-1].blocks.append(
                Block(
                    address=self.address(position),
                    size_bytes=size,
                    allocation=allocation if allocation >= 0 else None,
                )
            )
            end = position + size
        return ranges

    def count(
        self,
        action: Literal["segment_alloc", "segment_free", "segment_map", "segment_unmap"],
        position: int,
        size: int,
        heap: Heap,
    ) -> None:
        """Count memory taken from or given to the device, and write it down when a journal is kept."""
        grows = action in ("segment_alloc", "segment_map")
        self.reserved_bytes += size if grows else -size
        if self.journal is not None:
            self.journal.append((action, self.address(position), size, heap.stream, heap.pool))

    def insert_free(self, free: list[int], position: int, size: int) -> int:
        """Add a free block, merged with its free neighbours; the position of the result."""
        end = position + size
        if end in self.free_size:
            end += self.take_free(free, end)
        if position in self.free_start:
            position = self.free_start[position]
            self.take_free(free, position)
        self.free_size[position] = end - position
        self.free_start[end] = position
        insort(free, end - position << POSITION_BITS | position)
        return position

    def take_free(self, free: list[int], position: int) -> int:
        """Remove the free block at ``position``; its size."""
        size = self.free_size.pop(position)
        del self.free_start[position + size]
        del free[bisect_left(free, size << POSITION_BITS | position)]
        return size
