"""Where ``cudaMalloc`` puts a new segment.

The allocator breaks ties between free blocks of one size by address, so the order of the segments' addresses
decides which of two equal blocks is taken. `DeviceAddresses` mirrors what was seen in recorded snapshots.
"""

from __future__ import annotations

from typing import Protocol

from trainmem.units import MIB

__all__ = ["DeviceAddresses", "SegmentPlacement"]

_CHUNK_BYTES = 32 * MIB
_TOP = 1 << 46


class SegmentPlacement(Protocol):
    """Gives addresses to new segments and takes them back."""

    def place(self, size_bytes: int) -> int:
        """The address of a new segment."""

    def release(self, address: int, size_bytes: int) -> None:
        """Give a segment's addresses back."""


class DeviceAddresses:
    """Address space in chunks of 32 MiB, taken from the top down; the rest of a chunk serves later segments.

    Evidence: in the recorded snapshots every segment starts either at a multiple of 32 MiB below all earlier
    ones, or directly behind another segment in the unused rest of such a chunk.
    """

    __slots__ = ("_bottom", "_holes")

    def __init__(self) -> None:
        self._bottom = _TOP
        self._holes: list[tuple[int, int]] = []

    def place(self, size_bytes: int) -> int:
        """The lowest hole that is large enough, else a new chunk below all others."""
        for index, (start, end) in enumerate(self._holes):
            if end - start >= size_bytes:
                if end - start == size_bytes:
                    del self._holes[index]
                else:
                    self._holes[index] = (start + size_bytes, end)
                return start
        chunk = -(-size_bytes // _CHUNK_BYTES) * _CHUNK_BYTES
        self._bottom -= chunk
        if chunk > size_bytes:
            self._holes.insert(0, (self._bottom + size_bytes, self._bottom + chunk))
        return self._bottom

    def release(self, address: int, size_bytes: int) -> None:
        """Give a segment's addresses back: they become a hole again."""
        merged = sorted([*self._holes, (address, address + size_bytes)])
        holes = merged[:1]
        for start, end in merged[1:]:
            if start == holes[-1][1]:
                holes[-1] = (holes[-1][0], end)
            else:
                holes.append((start, end))
        self._holes = holes
