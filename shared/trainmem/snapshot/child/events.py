"""Traces: one column for each field of an event."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from .refusal import Refusal
from .stacks import StackTable
from .values import integer, integers, pieces

__all__ = ["ACTIONS", "UNKNOWN_ACTION", "Trace", "pool_name", "tabulate_trace"]

ACTIONS = {
    "alloc": 1,
    "free_requested": 2,
    "free_completed": 3,
    "segment_alloc": 4,
    "segment_free": 5,
    "segment_map": 6,
    "segment_unmap": 7,
    "snapshot": 8,
    "oom": 9,
    "annotate": 10,
    "free": 11,
}
"""Numbers of the actions; "free" is a request and its completion in one, in files that a viewer wrote."""

UNKNOWN_ACTION = 0
_FIELDS = ("action", "addr", "size", "time_us", "frames")
_WORDS = ("user_metadata", "category")


class Trace:
    """The events of one device."""

    def __init__(self, device: int, kind: str) -> None:
        self.header: dict[str, Any] = {"device": device, "kind": kind}
        self.columns: dict[str, array[int]] = {}


def tabulate_trace(
    events: list[dict[str, Any]], device: int, kind: str, table: StackTable, unknown: dict[str, int]
) -> Trace:
    """The columns of a trace. Counts actions that are not known in ``unknown``."""
    trace = Trace(device, kind)
    # Every writer that knows a key gives it to every event.
    words = tuple(key for key in _WORDS if key in events[0])
    actions, addresses, sizes, times = array("B"), array("Q"), array("Q"), array("Q")
    stacks, tags = array("i"), [array("I") for _ in words]
    empty = table.string("")
    for action, address, size, time_us, frames, *others in pieces(events, (*_FIELDS, *words)):
        actions.frombytes(_numbers(action, unknown))
        addresses.extend(integers(address, "addr", 0))
        sizes.extend(integers(size, "size", 0))
        times.extend(integers(time_us, "time_us", 0))
        stacks.extend(table.stacks(frames))
        for tag, values in zip(tags, others, strict=True):
            usual = values.count("") == len(values)
            tag.extend([empty] * len(values) if usual else map(table.string, values))
    trace.columns = {
        "action": actions,
        "address": addresses,
        "size": sizes,
        "time_us": times,
        "stack": stacks,
    }
    for key, tag in zip(words, tags, strict=True):
        if tag.count(empty) != len(tag):
            trace.columns[key] = tag
    if any("forward_frames" in event for event in events):
        trace.columns["forward_stack"] = table.tracebacks([event.get("forward_frames") for event in events])
    trace.header["device_free_bytes"] = [
        [number, integer(events[number].get("device_free"), "device_free", 0)]
        for number in _positions(actions.tobytes(), ACTIONS["oom"])
    ]
    return trace


def _numbers(actions: Sequence[Any], unknown: dict[str, int]) -> bytes:
    try:
        return bytes(map(ACTIONS.__getitem__, actions))
    except (KeyError, TypeError):
        pass
    for name in actions:
        if type(name) is not str:
            raise Refusal("action: not a string")
        if name not in ACTIONS:
            unknown[name[:60]] = unknown.get(name[:60], 0) + 1
    return bytes(ACTIONS.get(name, UNKNOWN_ACTION) for name in actions)


def _positions(data: bytes, value: int) -> list[int]:
    found: list[int] = []
    at = data.find(value)
    while at >= 0:
        found.append(at)
        at = data.find(value, at + 1)
    return found


def pool_name(value: Any) -> str:
    """A memory pool as text, for example ``0.1``; empty when it is not a pair of numbers."""
    if type(value) in (tuple, list) and len(value) == 2 and all(type(part) is int for part in value):
        return "{:x}.{:x}".format(*value) if all(0 <= part < 1 << 64 for part in value) else ""
    return ""
