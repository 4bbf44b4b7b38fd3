"""The exception of this package."""

from __future__ import annotations

__all__ = ["SnapshotRejected"]


class SnapshotRejected(ValueError):
    """The file was not opened: one line that says why."""
