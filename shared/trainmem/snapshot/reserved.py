"""Segments over the recording: what was reserved at its start, and after every event."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from trainmem.snapshot.model import Action, Segments, Trace

__all__ = ["ReservedAtStart", "reserved_at_start", "segment_events"]

_APPEARS = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
_SEGMENT_ACTIONS = (*_APPEARS, Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReservedAtStart:
    """Segments that existed before the first event."""

    total_bytes: int
    """Reserved bytes, exact when the segments and the trace agree."""

    segments: list[tuple[int, int]]
    """Address and size of whole segments."""

    mapped: list[tuple[int, int]]
    """Address and size of mapped pieces of expandable segments."""


def segment_events(trace: Trace) -> list[int]:
    """Numbers of the events that change what is reserved."""
    found: list[int] = []
    data = trace.action.tobytes()
    for action in _SEGMENT_ACTIONS:
        at = data.find(action)
        while at >= 0:
            found.append(at)
            at = data.find(action, at + 1)
    return sorted(found)


def reserved_at_start(
    trace: Trace, events: list[int], segments: Segments, *, is_host: bool
) -> ReservedAtStart:
    """Play the segment events backwards from what was reserved at the end."""
    whole: dict[int, int] = {}
    mapped = _Ranges()
    total = 0
    for device, host, address, size, expandable in zip(
        segments.device,
        segments.is_host,
        segments.address,
        segments.size,
        segments.is_expandable,
        strict=True,
    ):
        if device != trace.device or bool(host) is not is_host:
            continue
        total += size
        if expandable:
            mapped.add(address, address + size)
        else:
            whole[address] = size
    for event in reversed(events):
        action, address, size = trace.action[event], trace.address[event], trace.size[event]
        total += -size if action in _APPEARS else size
        if action == Action.SEGMENT_ALLOC:
            whole.pop(address, None)
        elif action == Action.SEGMENT_FREE:
            whole[address] = size
        elif action == Action.SEGMENT_MAP:
            mapped.remove(address, address + size)
        else:
            mapped.add(address, address + size)
    return ReservedAtStart(
        total_bytes=max(total, 0),
        segments=sorted(whole.items()),
        mapped=[(start, end - start) for start, end in mapped.ranges()],
    )


class _Ranges:
    """A set of addresses, as sorted ranges that do not touch."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def ranges(self) -> list[tuple[int, int]]:
        return list(zip(self._starts, self._ends, strict=True))

    def add(self, start: int, end: int) -> None:
        if start >= end:
            return
        first = bisect_left(self._ends, start)
        last = first
        while last < len(self._starts) and self._starts[last] <= end:
            start = min(start, self._starts[last])
            end = max(end, self._ends[last])
            last += 1
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    def remove(self, start: int, end: int) -> None:
        first = bisect_left(self._ends, start + 1)
        last = first
        kept: list[tuple[int, int]] = []
        while last < len(self._starts) and self._starts[last] < end:
            kept.append((self._starts[last], min(start, self._ends[last])))
            kept.append((max(end, self._starts[last]), self._ends[last]))
            last += 1
        kept = [(low, high) for low, high in kept if low < high]
        self._starts[first:last] = [low for low, _ in kept]
        self._ends[first:last] = [high for _, high in kept]
