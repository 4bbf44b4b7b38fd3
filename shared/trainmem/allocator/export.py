"""A predicted step as a snapshot file, the kind that ``torch.cuda.memory._dump_snapshot`` writes.

PyTorch's memory_viz page opens it, and so does our own viewer, beside a real one. The file is a pickle of
plain dicts, lists, strings and numbers, protocol 4, the newest that memory_viz reads.
"""

from __future__ import annotations

import pickle
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from trainmem.allocator.addresses import SegmentPlacement
from trainmem.allocator.caching import CachingAllocator
from trainmem.allocator.memory import MappedRange, SegmentAction
from trainmem.allocator.settings import AllocatorSettings

__all__ = ["Frame", "Region", "write_snapshot"]

_PICKLE_PROTOCOL = 4
_TICKS_OF_AN_EVENT = 2

Entry = dict[str, Any]


class Frame(NamedTuple):
    """One line of a call stack."""

    name: str
    filename: str = "trainmem"
    line: int = 0


class Region(NamedTuple):
    """A named stretch of events, as ``torch.profiler.record_function`` marks one."""

    name: str
    start_event: int
    end_event: int
    """The first event behind it."""


def write_snapshot(
    events: Sequence[int],
    *,
    stacks: Sequence[Sequence[Frame]] | None = None,
    categories: Sequence[str] = (),
    regions: Sequence[Region] = (),
    settings: AllocatorSettings | None = None,
    capacity_bytes: int | None = None,
    outside_bytes: int = 0,
    streams: Sequence[int] | None = None,
    pools: Sequence[int] | None = None,
    placement: SegmentPlacement | None = None,
    empty_cache_before: Collection[int] = (),
    kernels_loaded_before: Mapping[int, int] | None = None,
    device_index: int = 0,
) -> bytes:
    """The bytes of a snapshot of ``events`` (the stream that `replay` takes).

    ``stacks`` holds each allocation's call stack, innermost frame first, and ``categories`` what it is for, in
    the field that torch's profiler uses for that, both by allocation number. Times count
    events, two ticks each, since a prediction has no clock. When memory runs out the trace ends in an
    ``oom`` entry, as a real one does.
    """
    settings = settings if settings is not None else AllocatorSettings()
    allocator = CachingAllocator(
        settings, capacity_bytes=capacity_bytes, outside_bytes=outside_bytes, placement=placement
    )
    writer = _Writer(events, stacks or (), categories, streams or (), pools or ())
    journal = allocator.keep_journal()
    trace: list[Entry] = []
    loads = kernels_loaded_before or {}
    number = 0
    for index, event in enumerate(events):
        if index in empty_cache_before:
            allocator.empty_cache()
        if index in loads:
            allocator.load_kernels(loads[index])
        address = allocator.address(~event) if event < 0 else 0
        allocator.feed((event,), [], [], streams=streams, pools=pools)
        caller = number if event > 0 else None
        trace.extend(writer.segment_entry(index, caller, action) for action in journal)
        journal.clear()
        if allocator.oom is not None:
            rounded, free = settings.rounded(event), allocator.oom.free_bytes
            trace.append(writer.oom_entry(index, number, rounded, free))
            break
        if event > 0:
            trace.append(writer.entry(index, "alloc", allocator.address(number), number))
            number += 1
        else:
            trace.append(writer.entry(index, "free_requested", address, ~event))
            trace.append(writer.entry(index, "free_completed", address, ~event))
    snapshot = {
        "segments": [writer.segment(held, device_index) for held in allocator.mapped_ranges],
        "device_traces": [[] for _ in range(device_index)] + [trace],
        "allocator_settings": _settings(settings),
        "external_annotations": _annotations(regions, device_index),
    }
    return pickle.dumps(snapshot, protocol=_PICKLE_PROTOCOL)


class _Writer:
    """Turns numbers into entries. Equal stacks are one list, so that the file holds each once."""

    def __init__(
        self,
        events: Sequence[int],
        stacks: Sequence[Sequence[Frame]],
        categories: Sequence[str],
        streams: Sequence[int],
        pools: Sequence[int],
    ) -> None:
        self._sizes = [event for event in events if event > 0]
        self._stacks, self._streams, self._pools = stacks, streams, pools
        self._categories = categories
        self._frames: dict[tuple[Frame, ...], list[Entry]] = {}
        self._no_frames: list[Entry] = []

    def entry(self, index: int, action: str, address: int, number: int) -> Entry:
        stream = self._streams[number] if self._streams else 0
        pool = self._pools[number] if self._pools else 0
        entry = self._entry(index, action, address, self._sizes[number], stream, pool, self._stack(number))
        if self._categories:
            entry["category"] = self._categories[number]
        return entry

    def segment_entry(self, index: int, number: int | None, action: SegmentAction) -> Entry:
        return self._entry(index, *action, self._no_frames if number is None else self._stack(number))

    def oom_entry(self, index: int, number: int, size: int, free: int) -> Entry:
        entry = {**self.entry(index, "oom", 0, number), "size": size, "device_free": free}
        del entry["addr"]
        return entry

    def _entry(
        self, index: int, action: str, address: int, size: int, stream: int, pool: int, frames: list[Entry]
    ) -> Entry:
        entry: Entry = {
            "action": action,
            "addr": address,
            "size": size,
            "stream": stream,
            "pool_id": (pool, 0),
            "time_us": _time(index) + 1,
            "compile_context": "N/A",
            "user_metadata": "",
            "frames": frames,
        }
        return {**entry, "category": ""} if self._categories else entry

    def segment(self, held: MappedRange, device_index: int) -> Entry:
        blocks = []
        for block in held.blocks:
            number = block.allocation
            blocks.append(
                {
                    "address": block.address,
                    "size": block.size_bytes,
                    "requested_size": 0 if number is None else self._sizes[number],
                    "state": "inactive" if number is None else "active_allocated",
                    "frames": self._no_frames if number is None else self._stack(number),
                }
            )
        active = sum(block.size_bytes for block in held.blocks if block.allocation is not None)
        return {
            "device": device_index,
            "address": held.address,
            "total_size": held.size_bytes,
            "allocated_size": active,
            "active_size": active,
            "requested_size": sum(block["requested_size"] for block in blocks),
            "stream": held.segment.stream,
            "segment_type": "small" if held.segment.is_small else "large",
            "segment_pool_id": (held.segment.pool, 0),
            "is_expandable": held.segment.is_expandable,
            "frames": self._no_frames,
            "blocks": blocks,
        }

    def _stack(self, number: int) -> list[Entry]:
        if number >= len(self._stacks):
            return self._no_frames
        stack = tuple(self._stacks[number])
        frames = self._frames.get(stack)
        if frames is None:
            frames = [{"name": name, "filename": filename, "line": line} for name, filename, line in stack]
            self._frames[stack] = frames
        return frames


def _time(event_index: int) -> int:
    return event_index * _TICKS_OF_AN_EVENT


def _annotations(regions: Sequence[Region], device_index: int) -> list[Entry]:
    stamps = [("START", region.name, region.start_event) for region in regions]
    stamps += [("END", region.name, region.end_event) for region in regions]
    # Where one region ends and the next begins, the end comes first.
    stamps.sort(key=lambda stamp: (stamp[2], stamp[0]))
    return [
        {"stage": stage, "name": name, "device": device_index, "time_us": _time(event)}
        for stage, name, event in stamps
    ]


def _settings(settings: AllocatorSettings) -> Mapping[str, Any]:
    limit = settings.max_split_size_bytes
    return {
        "PYTORCH_CUDA_ALLOC_CONF": str(settings),
        "max_split_size": -1 if limit is None else limit,
        "garbage_collection_threshold": settings.garbage_collection_threshold,
        "expandable_segments": settings.expandable_segments,
        "roundup_power2_divisions": {
            str(1 << interval): divisions
            for interval, divisions in enumerate(settings.roundup_power2_divisions)
        },
    }
