"""Traces: one column for each field of an event."""

from __future__ import annotations

from array import array
from typing import Any

from .refusal import Refusal
from .stacks import StackTable
from .values import column, integer, integers

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
_WORDS = (("compile_context", "N/A"), ("user_metadata", ""), ("category", ""))


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
    columns = trace.columns
    actions = column(events, "action")
    names = set(map(type, actions))
    if not names <= {str}:
        raise Refusal("action: not a string")
    for name in set(actions) - ACTIONS.keys():
        unknown[name[:60]] = unknown.get(name[:60], 0) + actions.count(name)
    numbers = {name: ACTIONS.get(name, UNKNOWN_ACTION) for name in set(actions)}
    columns["action"] = array("B", bytes(map(numbers.__getitem__, actions)))
    columns["address"] = integers(column(events, "addr"), "addr", 0)
    columns["size"] = integers(column(events, "size"), "size", 0)
    columns["time_us"] = integers(column(events, "time_us"), "time_us", 0)
    columns["stack"] = table.stacks(column(events, "frames"))
    streams = column(events, "stream")
    if set(map(type, streams)) != {int} or any(streams):
        columns["stream"] = integers(streams, "stream", 0)
    if events and "pool_id" in events[0]:
        pools = column(events, "pool_id")
        if set(map(type, pools)) != {tuple} or pools.count((0, 0)) != len(pools):
            columns["pool"] = array("I", [table.string(pool_name(value)) for value in pools])
    for key, usual in _WORDS:
        # Every writer that knows a key gives it to every event.
        if events and key in events[0]:
            values = column(events, key)
            if values.count(usual) != len(values):
                columns[key] = array("I", map(table.string, values))
    forward = [event for event in events if "forward_frames" in event]
    if forward:
        columns["forward_stack"] = table.tracebacks(column(events, "forward_frames"))
    out_of_memory = [number for number, name in enumerate(actions) if name == "oom"]
    trace.header["device_free_bytes"] = [
        [number, integer(events[number].get("device_free"), "device_free", 0)] for number in out_of_memory
    ]
    return trace


def pool_name(value: Any) -> str:
    """A memory pool as text, for example ``0.1``; empty when it is not a pair of numbers."""
    if type(value) in (tuple, list) and len(value) == 2 and all(type(part) is int for part in value):
        return "{:x}.{:x}".format(*value) if all(0 <= part < 1 << 64 for part in value) else ""
    return ""
