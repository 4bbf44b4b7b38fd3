"""How much of a stranger's file is read."""

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = ["WEB", "Limits", "command_line_limits"]

_BYTES_PER_INPUT_BYTE = 8
"""Memory that reading and analysing takes for each byte of pickle, both processes together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Bounds on one file. The time allowed grows with the size of the file."""

    most_bytes: int
    """Of the file, and of what it holds when decompressed."""

    most_rows: int
    """Events, segments and blocks in all."""

    wall_seconds: float = 10.0
    wall_seconds_per_megabyte: float = 0.15

    def deadline_seconds(self, file_bytes: int, *, compressed: bool) -> float:
        """Wall-clock time after which reading is given up."""
        size = self.most_bytes if compressed else file_bytes
        return self.wall_seconds + self.wall_seconds_per_megabyte * size / 1e6


WEB = Limits(most_bytes=200_000_000, most_rows=5_000_000)
"""For uploads: 200 MB, decompressed or not."""


def command_line_limits() -> Limits:
    """For one's own files: whatever the machine's memory can hold."""
    try:
        memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        memory_bytes = 16 << 30
    return Limits(
        most_bytes=max(memory_bytes // _BYTES_PER_INPUT_BYTE, WEB.most_bytes), most_rows=200_000_000
    )
