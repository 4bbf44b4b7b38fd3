"""Segments and their blocks, as they were when the snapshot was taken."""

from __future__ import annotations

from array import array
from typing import Any

from .events import pool_name
from .refusal import Refusal
from .stacks import StackTable
from .values import integer, objects

__all__ = ["BLOCK_STATES", "SegmentTable"]

BLOCK_STATES = {
    "inactive": 0,
    "active_allocated": 1,
    "active_pending_free": 2,
    "active_awaiting_free": 2,
}
"""Numbers of the states; an unknown one counts as inactive. The last two are one state, named twice."""

_END = 1 << 64


class SegmentTable:
    """Columns of segments, and of their blocks in order of address."""

    def __init__(self) -> None:
        self.segments = {
            "device": array("Q"),
            "address": array("Q"),
            "size": array("Q"),
            "stream": array("Q"),
            "pool": array("I"),
            "is_small": array("B"),
            "is_expandable": array("B"),
            "is_host": array("B"),
            "stack": array("i"),
        }
        self.blocks = {
            "segment": array("I"),
            "address": array("Q"),
            "size": array("Q"),
            "requested": array("Q"),
            "state": array("B"),
            "stack": array("i"),
        }

    def add(self, segment: dict[str, Any], table: StackTable, *, is_host: bool = False) -> None:
        """One segment with its blocks."""
        number = len(self.segments["address"])
        address = integer(segment.get("address"), "segment address", 0)
        end = self._add_blocks(objects(segment.get("blocks"), "blocks"), number, address, table)
        size = integer(segment.get("total_size", segment.get("size")), "total_size", end - address)
        if address + size > _END:
            raise Refusal("total_size: a segment ends beyond 2^64")
        row = {
            "device": integer(segment.get("device"), "device", 0),
            "address": address,
            "size": size,
            "stream": integer(segment.get("stream"), "stream", 0),
            "pool": table.string(
                pool_name(segment.get("segment_pool_id", segment.get("owner_private_pool_id")))
            ),
            "is_small": segment.get("segment_type") == "small",
            "is_expandable": segment.get("is_expandable") is True,
            "is_host": is_host,
            "stack": table.stack(segment.get("frames")),
        }
        for key, value in row.items():
            self.segments[key].append(value)

    def _add_blocks(self, blocks: list[dict[str, Any]], segment: int, address: int, table: StackTable) -> int:
        columns = self.blocks
        for block in blocks:
            size = integer(block.get("size"), "block size")
            # Files of torch 2.0 have no addresses: blocks follow each other without gaps.
            address = integer(block.get("address"), "block address", address)
            frames, requested = block.get("frames"), block.get("requested_size")
            history = block.get("history")
            if type(history) is list and history and type(history[0]) is dict:
                frames = frames or history[0].get("frames")
                requested = history[0].get("real_size") if requested is None else requested
            state = block.get("state")
            columns["segment"].append(segment)
            columns["address"].append(address)
            columns["size"].append(size)
            columns["requested"].append(integer(requested, "requested_size", size))
            columns["state"].append(BLOCK_STATES.get(state, 0) if type(state) is str else 0)
            columns["stack"].append(table.stack(frames))
            address += size
            if address > _END:
                raise Refusal("size: a block ends beyond 2^64")
        return address
