"""Free space by address, so that a block's true size can be told from where it was placed.

An allocation counts for the whole block it sits in: the request rounded up, and whatever rest was too small
to split off. Which free block it was cut from is known from its address, so nothing about the search needs to
be assumed. Rules and source: `trainmem.allocator`.
"""

from __future__ import annotations

from collections.abc import Iterable

from trainmem.allocator import AllocatorSettings
from trainmem.allocator.settings import MAX_BYTES_OF_SMALL_POOL, MIN_BLOCK_BYTES

__all__ = ["Extents", "largest_rest_bytes"]

_MOST_RANGES_SEARCHED = 20_000_000


def largest_rest_bytes(rounded_bytes: int, settings: AllocatorSettings) -> int:
    """The most that stays with a block of this size instead of being split off."""
    if settings.max_split_size_bytes is not None and rounded_bytes >= settings.max_split_size_bytes:
        return 1 << 63
    if rounded_bytes <= MAX_BYTES_OF_SMALL_POOL or settings.expandable_segments:
        return MIN_BLOCK_BYTES - 1
    return MAX_BYTES_OF_SMALL_POOL


class Extents:
    """The free ranges of the reserved memory, found by where they start and where they end.

    The attributes are dictionaries that the replay's loop works on directly: a million events leave no room
    for a call each.
    """

    def __init__(self) -> None:
        self.size_at: dict[int, int] = {}
        self.start_of_end: dict[int, int] = {}
        self.walls: set[int] = set()
        """Where a segment begins or ends: free ranges do not merge across it."""

        self._ranges_searched = 0

    def add_segment(self, start: int, size: int) -> None:
        """A segment appears, free as a whole, with walls at both ends."""
        if size > 0:
            self.walls.update((start, start + size))
            self._put(start, start + size)

    def remove_segment(self, start: int, size: int) -> None:
        """A segment that is free as a whole goes away."""
        if self.size_at.get(start) == size:
            self._drop(start, size)

    def map(self, start: int, size: int) -> None:
        """A piece of an expandable segment appears; it merges with free neighbours."""
        if size > 0:
            self.free(start, start + size)

    def unmap(self, start: int, size: int) -> None:
        """A free piece goes away, from anywhere within a free range."""
        end = start + size
        for begin, length in self._overlapping(start, end):
            self._drop(begin, length)
            if begin < start:
                self._put(begin, start)
            if end < begin + length:
                self._put(end, begin + length)

    def occupy(self, blocks: Iterable[tuple[int, int]]) -> None:
        """Cut blocks (address, size) out of the free ranges, wherever in them they sit."""
        taken = sorted(blocks)
        ranges = sorted(self.size_at.items())
        self.size_at.clear()
        self.start_of_end.clear()
        at = 0
        for start, size in ranges:
            end = start + size
            while at < len(taken) and taken[at][0] < end:
                address, length = taken[at]
                at += 1
                if address + length <= start:
                    continue
                if address > start:
                    self._put(start, address)
                start = max(start, address + length)
            if start < end:
                self._put(start, end)

    def free(self, start: int, end: int) -> None:
        """Give a range back; it merges with free neighbours unless a wall stands between."""
        if end not in self.walls and end in self.size_at:
            size = self.size_at.pop(end)
            end += size
        if start not in self.walls and start in self.start_of_end:
            start = self.start_of_end.pop(start)
        self._put(start, end)

    def _put(self, start: int, end: int) -> None:
        self.size_at[start] = end - start
        self.start_of_end[end] = start

    def _drop(self, start: int, size: int) -> None:
        del self.size_at[start]
        # in a file whose events contradict each other, ranges overlap and two may end at one address
        self.start_of_end.pop(start + size, None)

    def _overlapping(self, start: int, end: int) -> list[tuple[int, int]]:
        known = self.size_at.get(start)
        if known is not None and start + known >= end:
            return [(start, known)]
        # Rare in real files. One made to be slow stops being followed, which only costs exact block sizes.
        self._ranges_searched += len(self.size_at)
        if self._ranges_searched > _MOST_RANGES_SEARCHED:
            return []
        return [(begin, size) for begin, size in self.size_at.items() if begin < end and begin + size > start]
