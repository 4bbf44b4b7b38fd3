"""`CachingAllocator` on the machine code of ``caching.c``."""

from __future__ import annotations

import ctypes
import weakref
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace

from trainmem.allocator.addresses import OUT_OF_ADDRESSES, DeviceAddresses, RisingAddresses, SegmentPlacement
from trainmem.allocator.caching import ByAllocation
from trainmem.allocator.compiled.events import packed_events
from trainmem.allocator.compiled.library import library
from trainmem.allocator.oom import OutOfMemory
from trainmem.allocator.settings import AllocatorSettings

__all__ = ["CompiledAllocator", "compiled_allocator"]

_OK = 0
_NO_MEMORY_HERE, _NO_ADDRESS_LEFT, _NOT_LIVE, _ZERO = -1, -2, -3, -4
_NO_LIMIT = -1
_MOST_BYTES = 1 << 50
"""Of a device, and of a segment: the machine code adds such figures up in 64 bits."""


def compiled_allocator(
    settings: AllocatorSettings | None = None,
    *,
    capacity_bytes: int | None = None,
    outside_bytes: int = 0,
    placement: SegmentPlacement | None = None,
) -> CompiledAllocator | None:
    """An allocator of its own, `CachingAllocator`'s arguments; None where the Python has to do it."""
    settings = settings if settings is not None else AllocatorSettings()
    plain = AllocatorSettings(
        large_segment_size_bytes=settings.large_segment_size_bytes,
        per_process_memory_fraction=settings.per_process_memory_fraction,
    )
    is_known = placement is None or (
        type(placement) in (DeviceAddresses, RisingAddresses) and placement.is_untouched  # type: ignore[attr-defined]
    )
    is_counted = max(capacity_bytes or 0, outside_bytes, settings.large_segment_size_bytes) < _MOST_BYTES
    is_capped = capacity_bytes is None and settings.per_process_memory_fraction < 1
    code = library()
    if code is None or settings != plain or not (is_known and is_counted) or is_capped:
        return None
    return CompiledAllocator(code, settings, capacity_bytes, outside_bytes, placement)


class CompiledAllocator:
    """`CachingAllocator` for streams of events alone: `feed`, `empty_cache` and the counters."""

    def __init__(
        self,
        code: ctypes.CDLL,
        settings: AllocatorSettings,
        capacity_bytes: int | None,
        outside_bytes: int,
        placement: SegmentPlacement | None,
    ) -> None:
        fraction = settings.per_process_memory_fraction
        cap = None if capacity_bytes is None or fraction >= 1 else int(fraction * capacity_bytes)
        self.oom: OutOfMemory | None = None
        self._code = code
        self._settings = settings
        self._limits = OutOfMemory(
            event_index=0,
            requested_bytes=0,
            tried_bytes=0,
            allocated_bytes=0,
            reserved_bytes=0,
            idle_private_bytes=0,
            capacity_bytes=capacity_bytes or 0,
            outside_bytes=outside_bytes,
            cap_bytes=cap,
        )
        wait = placement.segments_before_kernels if isinstance(placement, DeviceAddresses) else 0
        self._it = code.trainmem_new(
            _NO_LIMIT if capacity_bytes is None else capacity_bytes,
            outside_bytes,
            _NO_LIMIT if cap is None else cap,
            settings.large_segment_size_bytes,
            isinstance(placement, RisingAddresses),
            wait,
        )
        if not self._it:
            raise MemoryError
        weakref.finalize(self, code.trainmem_delete, self._it)
        self._counters = array("q", bytes(8 * 6))
        self._read = self._counters.buffer_info()[0]

    @property
    def allocated_bytes(self) -> int:
        """What ``torch.cuda.memory_allocated`` reads."""
        return self._counters[0]

    @property
    def reserved_bytes(self) -> int:
        """What ``torch.cuda.memory_reserved`` reads."""
        return self._counters[1]

    @property
    def retries(self) -> int:
        """How often every idle segment was given back because the device was full."""
        return self._counters[2]

    @property
    def allocations(self) -> int:
        """How many there were so far."""
        return self._counters[5]

    @property
    def block_bytes(self) -> list[int]:
        """Size of the block that each allocation got, by its number."""
        out = array("q", bytes(8 * self.allocations))
        self._code.trainmem_block_bytes(self._it, out.buffer_info()[0])
        return out.tolist()

    def blocks(self, first: int) -> bytes:
        """Where the free blocks are, and the allocations from ``first`` on that live: equal where those are."""
        count = self._code.trainmem_layout(self._it, first, None)
        out: array[int] = array("q", [0]) * count
        self._code.trainmem_layout(self._it, first, out.buffer_info()[0])
        return out.tobytes()

    def empty_cache(self) -> None:
        """``torch.cuda.empty_cache``."""
        self._check(self._code.trainmem_empty_cache(self._it))
        self._code.trainmem_counters(self._it, self._read)

    def load_kernels(self, size_bytes: int) -> None:
        """Kernels used for the first time take addresses that segments could have had."""
        self._check(self._code.trainmem_load_kernels(self._it, size_bytes))

    def feed(
        self,
        events: Sequence[int],
        allocated: list[int],
        reserved: list[int],
        *,
        streams: ByAllocation | None = None,
    ) -> None:
        """`CachingAllocator.feed`."""
        counts = tuple(array("q", bytes(8 * len(events))) for _ in range(2))
        done = self._feed(events, streams, *(each.buffer_info()[0] for each in counts))
        if self.oom is not None:
            self.oom = replace(self.oom, event_index=len(allocated) + done)
        for into, each in zip((allocated, reserved), counts, strict=True):
            into += each[:done].tolist()

    def highest(
        self, events: Sequence[int], streams: ByAllocation | None = None, *, later: int = 0
    ) -> int | None:
        """`CachingAllocator.highest`."""
        self._feed(events, streams, None, None, later)
        return None if self.oom is not None else self._counters[3]

    def _feed(
        self,
        events: Sequence[int],
        streams: ByAllocation | None,
        allocated: int | None,
        reserved: int | None,
        later: int = 0,
    ) -> int:
        """How many events were played; ``oom`` says why not all of them."""
        numbers, of = self._on_streams(events, streams)
        packed = packed_events(events)
        done = int(
            self._code.trainmem_feed(
                self._it,
                packed.buffer_info()[0],
                len(packed),
                later,
                numbers.buffer_info()[0],
                of.buffer_info()[0],
                len(numbers),
                allocated,
                reserved,
            )
        )
        self._code.trainmem_counters(self._it, self._read)
        self._check(done, packed, later)
        if self._counters[4]:
            self.oom = replace(
                self._limits,
                event_index=done,
                requested_bytes=events[done],
                tried_bytes=self._settings.segment_bytes(self._settings.rounded(events[done])),
                allocated_bytes=self.allocated_bytes,
                reserved_bytes=self.reserved_bytes,
            )
        return done

    def _on_streams(
        self, events: Sequence[int], streams: ByAllocation | None
    ) -> tuple[array[int], array[int]]:
        """Numbers of the allocations that are not on the default stream, in order, and their streams."""
        numbers, of = array("q"), array("i")
        if streams is None:
            return numbers, of
        first = self.allocations
        if isinstance(streams, Mapping):
            found = sorted(
                (number, stream) for number, stream in streams.items() if number >= first and stream
            )
        else:
            found = [(number, stream) for number, stream in enumerate(streams) if number >= first and stream]
        for number, stream in found:
            numbers.append(number)
            of.append(stream)
        return numbers, of

    def _check(self, answer: int, events: Sequence[int] = (), later: int = 0) -> None:
        """Raise what the machine code could only answer."""
        if answer >= _OK:
            return
        if answer == _NO_MEMORY_HERE:
            raise MemoryError
        if answer == _NO_ADDRESS_LEFT:
            raise ValueError(f"events: {OUT_OF_ADDRESSES}")
        if answer == _ZERO:
            raise ValueError("events: 0 is neither an allocation nor a free")
        raise ValueError(f"events: allocation {~events[self._counters[3]] + later} is freed, but is not live")
