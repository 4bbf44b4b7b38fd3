"""The allocator's hot loop as machine code: the same rules as `trainmem.allocator.caching`, about ten times as fast.

``caching.c`` and ``addresses.c`` beside this file are built when the package is installed where there is a C
compiler (``hatch_build.py``); ``bench/allocator.py`` compares the two. Without one, and for settings whose rules
only the Python has, `compiled_allocator` answers None and the Python runs; what it says is the same, event by
event, which the tests hold.
"""

from __future__ import annotations

import ctypes
import weakref
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from trainmem.allocator.addresses import OUT_OF_ADDRESSES, DeviceAddresses, RisingAddresses, SegmentPlacement
from trainmem.allocator.caching import ByAllocation
from trainmem.allocator.oom import OutOfMemory
from trainmem.allocator.settings import AllocatorSettings

__all__ = ["LIBRARY", "SOURCES", "CompiledAllocator", "compiled_allocator", "fingerprint", "is_compiled"]

_HERE = Path(__file__).parent
LIBRARY = _HERE / "caching.library"
"""Named so that Python does not take it for a module of its own."""

SOURCES = tuple(_HERE / name for name in ("addresses.h", "addresses.c", "caching.c"))

_OK = 0
_NO_MEMORY_HERE, _NO_ADDRESS_LEFT, _NOT_LIVE, _ZERO = -1, -2, -3, -4
_NO_LIMIT = -1

_Number, _Address, _Small = ctypes.c_int64, ctypes.c_void_p, ctypes.c_int32
_FUNCTIONS: dict[str, tuple[type | None, list[type]]] = {
    "trainmem_new": (_Address, [_Number, _Number, _Number, _Number, _Small, _Number]),
    "trainmem_delete": (None, [_Address]),
    "trainmem_feed": (
        _Number,
        [_Address, _Address, _Number, _Address, _Address, _Number, _Address, _Address],
    ),
    "trainmem_empty_cache": (_Small, [_Address]),
    "trainmem_load_kernels": (_Small, [_Address, _Number]),
    "trainmem_counters": (None, [_Address, _Address]),
    "trainmem_block_bytes": (None, [_Address, _Address]),
    "trainmem_layout": (_Number, [_Address, _Number, _Address]),
}


def fingerprint() -> int:
    """Of the C sources; a library built from others is not used."""
    return zlib.crc32(b"".join(path.read_bytes() for path in SOURCES))


@cache
def _library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(str(LIBRARY))
        built_from = ctypes.c_uint32.in_dll(library, "trainmem_fingerprint").value
        if built_from != fingerprint():
            return None
    except (OSError, ValueError):
        return None
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def is_compiled() -> bool:
    """Whether there is machine code that fits the sources."""
    return _library() is not None


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
    fraction = settings.per_process_memory_fraction
    if settings != plain or not is_known or (capacity_bytes is None and fraction < 1):
        return None
    library = _library()
    return (
        None
        if library is None
        else CompiledAllocator(library, settings, capacity_bytes, outside_bytes, placement)
    )


class CompiledAllocator:
    """`CachingAllocator` for streams of events alone: `feed`, `empty_cache` and the counters."""

    def __init__(
        self,
        library: ctypes.CDLL,
        settings: AllocatorSettings,
        capacity_bytes: int | None,
        outside_bytes: int,
        placement: SegmentPlacement | None,
    ) -> None:
        fraction = settings.per_process_memory_fraction
        cap = None if capacity_bytes is None or fraction >= 1 else int(fraction * capacity_bytes)
        self.oom: OutOfMemory | None = None
        self._library = library
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
        self._it = library.trainmem_new(
            _NO_LIMIT if capacity_bytes is None else capacity_bytes,
            outside_bytes,
            _NO_LIMIT if cap is None else cap,
            settings.large_segment_size_bytes,
            isinstance(placement, RisingAddresses),
            wait,
        )
        if not self._it:
            raise MemoryError
        weakref.finalize(self, library.trainmem_delete, self._it)
        self._read = array("q", bytes(8 * 6))

    def _counter(self, index: int) -> int:
        self._library.trainmem_counters(self._it, self._read.buffer_info()[0])
        return self._read[index]

    @property
    def allocated_bytes(self) -> int:
        """What ``torch.cuda.memory_allocated`` reads."""
        return self._counter(0)

    @property
    def reserved_bytes(self) -> int:
        """What ``torch.cuda.memory_reserved`` reads."""
        return self._counter(1)

    @property
    def retries(self) -> int:
        """How often every idle segment was given back because the device was full."""
        return self._counter(2)

    @property
    def allocations(self) -> int:
        """How many there were so far."""
        return self._counter(5)

    @property
    def block_bytes(self) -> list[int]:
        """Size of the block that each allocation got, by its number."""
        out = array("q", bytes(8 * self.allocations))
        self._library.trainmem_block_bytes(self._it, out.buffer_info()[0])
        return out.tolist()

    def blocks(self, first: int) -> bytes:
        """Where the free blocks are, and the allocations from ``first`` on that live: equal where those are."""
        count = self._library.trainmem_layout(self._it, first, None)
        out = array("q", bytes(8 * count))
        self._library.trainmem_layout(self._it, first, out.buffer_info()[0])
        return out.tobytes()

    def empty_cache(self) -> None:
        """``torch.cuda.empty_cache``."""
        self._check(self._library.trainmem_empty_cache(self._it), ())

    def load_kernels(self, size_bytes: int) -> None:
        """Kernels used for the first time take addresses that segments could have had."""
        self._check(self._library.trainmem_load_kernels(self._it, size_bytes), ())

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

    def highest(self, events: Sequence[int], streams: ByAllocation | None = None) -> int | None:
        """Plays events: the highest allocated bytes after any of them, None where memory runs out."""
        self._feed(events, streams, None, None)
        return None if self.oom is not None else self._counter(3)

    def _feed(
        self,
        events: Sequence[int],
        streams: ByAllocation | None,
        allocated: int | None,
        reserved: int | None,
    ) -> int:
        """How many events were played; ``oom`` says why not all of them."""
        numbers, of = self._on_streams(events, streams)
        try:
            packed = array("q", events)
        except OverflowError as error:
            raise ValueError(f"events: {OUT_OF_ADDRESSES}") from error
        done = int(
            self._library.trainmem_feed(
                self._it,
                packed.buffer_info()[0],
                len(packed),
                numbers.buffer_info()[0],
                of.buffer_info()[0],
                len(numbers),
                allocated,
                reserved,
            )
        )
        self._check(done, events)
        tried = self._counter(4)
        if tried:
            self.oom = replace(
                self._limits,
                event_index=done,
                requested_bytes=events[done],
                tried_bytes=tried,
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

    def _check(self, answer: int, events: Sequence[int]) -> None:
        """Raise what the machine code could only answer."""
        if answer >= _OK:
            return
        if answer == _NO_MEMORY_HERE:
            raise MemoryError
        if answer == _NO_ADDRESS_LEFT:
            raise ValueError(f"events: {OUT_OF_ADDRESSES}")
        if answer == _ZERO:
            raise ValueError("events: 0 is neither an allocation nor a free")
        raise ValueError(f"events: allocation {~events[self._counter(3)]} is freed, but is not live")
