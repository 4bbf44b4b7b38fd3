"""A snapshot as columns: what the file said, checked, and nothing derived yet."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal, NamedTuple

__all__ = [
    "Action",
    "Annotation",
    "BlockState",
    "EndBlocks",
    "Frame",
    "Segments",
    "Snapshot",
    "Source",
    "Stacks",
    "Trace",
]


class Action(IntEnum):
    """What an event does. ``FREE`` is a request and its completion in one (files that a viewer wrote)."""

    UNKNOWN = 0
    ALLOC = 1
    FREE_REQUESTED = 2
    FREE_COMPLETED = 3
    SEGMENT_ALLOC = 4
    SEGMENT_FREE = 5
    SEGMENT_MAP = 6
    SEGMENT_UNMAP = 7
    SNAPSHOT = 8
    OOM = 9
    ANNOTATE = 10
    FREE = 11


class BlockState(IntEnum):
    """State of a block when the snapshot was taken; ``PENDING`` waits for another stream to finish with it."""

    INACTIVE = 0
    ALLOCATED = 1
    PENDING = 2


class Frame(NamedTuple):
    """One frame of a stack; C++ frames have line 0."""

    name: str
    file: str
    line: int


class Annotation(NamedTuple):
    """The start or end of a named region, on the clock of the events."""

    is_start: bool
    name: str
    device: int
    time_us: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Where the snapshot came from."""

    name: str
    format: str
    gzip: bool
    size_bytes: int
    """Decompressed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stacks:
    """Every stack once: ``ends[n]`` is where stack ``n`` ends in ``frame_numbers``, innermost frame first."""

    ends: array[int]
    frame_numbers: array[int]
    frames: Sequence[Frame]

    def __len__(self) -> int:
        return len(self.ends)

    def frame_numbers_of(self, stack: int) -> Sequence[int]:
        """Frames of a stack by number; none for stack -1."""
        if stack < 0:
            return ()
        return self.frame_numbers[self.ends[stack - 1] if stack else 0 : self.ends[stack]]

    def of(self, stack: int) -> list[Frame]:
        """The frames of a stack, innermost first."""
        return [self.frames[number] for number in self.frame_numbers_of(stack)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """The recorded events of one device, or of pinned host memory, one column a field."""

    device: int
    kind: Literal["device", "host"] = "device"
    action: array[int]
    address: array[int]
    size: array[int]
    """Requested bytes of allocations and frees, mapped bytes of segments."""

    time_us: array[int]
    """0 where the file has no time."""

    stack: array[int]
    """Number in `Snapshot.stacks`; -1 where no frames were recorded."""

    forward_stack: array[int] | None = None
    words: Mapping[str, array[int]] = field(default_factory=dict)
    """Numbers into `Snapshot.strings` under ``user_metadata`` and ``category``, where the file has them."""

    device_free_bytes: Mapping[int, int] = field(default_factory=dict)
    """Free memory of the device at each out-of-memory event, by event number."""

    def __len__(self) -> int:
        return len(self.action)


@dataclass(frozen=True, kw_only=True, slots=True)
class Segments:
    """Memory reserved from the device when the snapshot was taken."""

    device: array[int]
    address: array[int]
    size: array[int]
    stream: array[int]
    pool: array[int]
    is_small: array[int]
    is_expandable: array[int]
    is_host: array[int]
    stack: array[int]

    def __len__(self) -> int:
        return len(self.address)


@dataclass(frozen=True, kw_only=True, slots=True)
class EndBlocks:
    """Blocks of the segments when the snapshot was taken."""

    segment: array[int]
    address: array[int]
    size: array[int]
    requested: array[int]
    state: array[int]
    stack: array[int]

    def __len__(self) -> int:
        return len(self.address)


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """Everything that was read."""

    source: Source
    traces: Sequence[Trace]
    """Only the devices that have events."""

    trace_lists: int
    """Devices that the recording process could see."""

    segments: Segments
    end_blocks: EndBlocks
    stacks: Stacks
    strings: Sequence[str]
    annotations: Sequence[Annotation]
    settings: Mapping[str, Any]
    unknown_actions: Mapping[str, int]

    def devices(self) -> list[int]:
        """Devices with events or segments."""
        found = {trace.device for trace in self.traces if trace.kind == "device"}
        found.update(
            device
            for device, is_host in zip(self.segments.device, self.segments.is_host, strict=True)
            if not is_host
        )
        return sorted(found)

    def trace(self, device: int, kind: Literal["device", "host"] = "device") -> Trace:
        """The events of a device; an empty trace when there are none."""
        for trace in self.traces:
            if trace.device == device and trace.kind == kind:
                return trace
        return Trace(
            device=device,
            kind=kind,
            action=array("B"),
            address=array("Q"),
            size=array("Q"),
            time_us=array("Q"),
            stack=array("i"),
        )
