"""From a loaded snapshot to columns: everything checked, nothing visited twice."""

from __future__ import annotations

from array import array
from typing import Any

from .events import Trace, tabulate_trace
from .refusal import Refusal
from .segments import SegmentTable
from .stacks import StackTable
from .values import integer, objects

__all__ = ["Budget", "tabulate"]

_MOST_DEVICES = 1024
_MOST_ANNOTATIONS = 500_000
_MOST_SETTINGS = 100
_BYTES_OF_A_ROW = 16
"""No event or block takes less in a file, unless it stands there once and is referred to many times."""


class Budget:
    """How many events, segments and blocks may be seen in all, however often the file shares one."""

    def __init__(self, input_bytes: int, most_rows: int) -> None:
        self.rows = min(most_rows, 10_000 + input_bytes // _BYTES_OF_A_ROW)

    def spend(self, rows: int) -> None:
        """Raises `Refusal` when the file shows more than it could hold."""
        self.rows -= rows
        if self.rows < 0:
            raise Refusal(
                "it has more events or blocks than the limit, or refers to the same ones many times"
            )


def tabulate(content: Any, budget: Budget) -> tuple[dict[str, Any], list[array[int]]]:
    """The header and columns of a snapshot (`wire`)."""
    if type(content) is list:
        # torch.cuda.memory_snapshot() returns the segments alone.
        content = {"segments": content}
    if type(content) is not dict or not {"segments", "device_traces"} & content.keys():
        raise Refusal("it has neither segments nor device_traces: not a memory snapshot")
    table = StackTable()
    unknown: dict[str, int] = {}
    traces: list[Trace] = []
    for kind, key in (("device", "device_traces"), ("host", "host_traces")):
        for device, events in enumerate(_event_lists(content.get(key), key)):
            budget.spend(len(events) + 1)
            if events:
                traces.append(tabulate_trace(events, device, kind, table, unknown))
    segments = SegmentTable()
    for kind, key in (("device", "segments"), ("host", "host_segments")):
        for segment in objects(content.get(key), key):
            blocks = segment.get("blocks")
            budget.spend(1 + (len(blocks) if isinstance(blocks, list | tuple) else 0))
            segments.add(segment, table, is_host=kind == "host")
    columns: list[array[int]] = []

    def numbered(part: dict[str, array[int]]) -> dict[str, int]:
        first = len(columns)
        columns.extend(part.values())
        return {name: first + offset for offset, name in enumerate(part)}

    device_traces = content.get("device_traces")
    header: dict[str, Any] = {
        "traces": [{**trace.header, "columns": numbered(trace.columns)} for trace in traces],
        "trace_lists": len(device_traces) if type(device_traces) is list else 0,
        "segments": numbered(segments.segments),
        "blocks": numbered(segments.blocks),
        "frames": numbered({"name": table.frame_names, "file": table.frame_files, "line": table.frame_lines}),
        "stacks": numbered({"end": table.stack_ends, "frame": table.stack_frames}),
        "annotations": _annotations(content.get("external_annotations"), table),
        "settings": _settings(content.get("allocator_settings")),
        "unknown_actions": dict(sorted(unknown.items())[:20]),
    }
    header["strings"] = table.strings
    return header, columns


def _event_lists(value: Any, key: str) -> list[list[dict[str, Any]]]:
    if value is None:
        return []
    if type(value) is not list or len(value) > _MOST_DEVICES:
        raise Refusal(f"{key}: not a list with one list of events a device")
    if value and type(value[0]) is dict:
        value = [value]
    return [objects(events, key) for events in value]


def _annotations(value: Any, table: StackTable) -> list[list[int]]:
    """Stage (1 for the start), name, device and time of each."""
    rows = objects(value, "external_annotations")[:_MOST_ANNOTATIONS]
    return [
        [
            int(row.get("stage") == "START"),
            table.string(row.get("name")),
            integer(row.get("device"), "annotation device", 0) & 0xFFFF,
            integer(row.get("time_us"), "annotation time_us", 0),
        ]
        for row in rows
    ]


def _settings(value: Any) -> dict[str, Any]:
    """Scalars of the allocator's settings, and one level of objects of them."""
    if type(value) is not dict:
        return {}
    settings: dict[str, Any] = {}
    for name, entry in list(value.items())[:_MOST_SETTINGS]:
        if type(name) is not str:
            continue
        if type(entry) is dict:
            entry = {
                key: part
                for key, part in list(entry.items())[:_MOST_SETTINGS]
                if type(key) is str and _is_scalar(part)
            }
        elif not _is_scalar(entry):
            continue
        settings[name[:100]] = entry
    return settings


def _is_scalar(value: Any) -> bool:
    if type(value) is int:
        return -(1 << 63) <= value < 1 << 64
    if type(value) is float:
        return value - value == 0
    return type(value) is bool or (type(value) is str and len(value) <= 2000)
