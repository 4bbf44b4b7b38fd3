"""The allocator's settings as a snapshot states them."""

from __future__ import annotations

from trainmem.allocator import AllocatorSettings
from trainmem.snapshot.model import Action, Snapshot

__all__ = ["settings_of"]


def settings_of(snapshot: Snapshot) -> AllocatorSettings:
    """What changes the placement of blocks. Settings that are missing or impossible are PyTorch's defaults."""
    found = snapshot.settings
    text = found.get("PYTORCH_ALLOC_CONF") or found.get("PYTORCH_CUDA_ALLOC_CONF")
    if isinstance(text, str) and text:
        try:
            return AllocatorSettings.parse(text)
        except ValueError:
            pass
    expandable = found.get("expandable_segments") is True or any(
        trace.action.count(Action.SEGMENT_MAP) for trace in snapshot.traces
    )
    limit = found.get("max_split_size")
    try:
        return AllocatorSettings(
            expandable_segments=expandable,
            max_split_size_bytes=limit if isinstance(limit, int) and 0 < limit < 1 << 62 else None,
        )
    except ValueError:
        return AllocatorSettings(expandable_segments=expandable)
