"""PyTorch's CUDA caching allocator: what a list of allocations and frees costs on a device.

``replay`` is the whole story for a list of events; `CachingAllocator` is the same allocator one step at a
time.
"""

from trainmem.allocator.addresses import DeviceAddresses, RisingAddresses, SegmentPlacement
from trainmem.allocator.caching import CachingAllocator
from trainmem.allocator.capacity import CapacityAnswer, CapacityVerdict, check_capacity
from trainmem.allocator.compiled import (
    ALLOCATED,
    ALLOCATED_FIRST,
    ALLOCATED_ONCE,
    GIVEN,
    Laid,
    Parts,
    Row,
    event_of,
    first_freed,
)
from trainmem.allocator.export import Frame, Region, write_snapshot
from trainmem.allocator.memory import Block, MappedRange, Segment
from trainmem.allocator.oom import AllocatorOutOfMemoryError, OutOfMemory
from trainmem.allocator.replay import Replay, replay, stream_allocator
from trainmem.allocator.settings import TURN_ON_EXPANDABLE_SEGMENTS, AllocatorSettings

__all__ = [
    "ALLOCATED",
    "ALLOCATED_FIRST",
    "ALLOCATED_ONCE",
    "GIVEN",
    "TURN_ON_EXPANDABLE_SEGMENTS",
    "AllocatorOutOfMemoryError",
    "AllocatorSettings",
    "Block",
    "CachingAllocator",
    "CapacityAnswer",
    "CapacityVerdict",
    "DeviceAddresses",
    "Frame",
    "Laid",
    "MappedRange",
    "OutOfMemory",
    "Parts",
    "Region",
    "Replay",
    "RisingAddresses",
    "Row",
    "Segment",
    "SegmentPlacement",
    "check_capacity",
    "event_of",
    "first_freed",
    "replay",
    "stream_allocator",
    "write_snapshot",
]
