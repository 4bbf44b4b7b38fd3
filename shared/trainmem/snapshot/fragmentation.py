"""Memory that is reserved and not allocated: how much, when, and what holds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from trainmem.snapshot.model import BlockState, Snapshot, Trace
from trainmem.snapshot.timeline import Curves

__all__ = ["Fragmentation", "HeldSegment", "fragmentation_of"]

_MOST_SEGMENTS = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldSegment:
    """A segment that cannot be given back, because little of it is still used."""

    address: int
    size_bytes: int
    used_bytes: int
    largest_free_bytes: int
    is_private: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Fragmentation:
    """Reserved minus allocated, at the peaks and at the end."""

    at_peak_bytes: int
    """When the most was allocated."""

    most_bytes: int
    at_end_bytes: int
    idle_segments_bytes: int
    """Whole segments that are free at the end; ``torch.cuda.empty_cache()`` would give them back."""

    private_pool_bytes: int
    """Reserved for private pools, CUDA graphs for one, at the end."""

    held: tuple[HeldSegment, ...]
    """Segments with the most free memory that a few used bytes hold back."""


def fragmentation_of(
    snapshot: Snapshot, trace: Trace, curves: Curves, segment_events: Sequence[int]
) -> Fragmentation:
    """Fragmentation of one device, or of pinned host memory."""
    allocated, reserved = curves.allocated, curves.reserved
    used, largest = _use_of_segments(snapshot)
    segments = snapshot.segments
    idle = private = 0
    held: list[HeldSegment] = []
    for number in range(len(segments)):
        if segments.device[number] != trace.device or bool(segments.is_host[number]) is not (
            trace.kind == "host"
        ):
            continue
        size = segments.size[number]
        is_private = snapshot.strings[segments.pool[number]] not in ("", "0.0")
        if is_private:
            private += size
        if used[number] == 0:
            idle += 0 if is_private else size
        elif used[number] < size:
            held.append(
                HeldSegment(
                    address=segments.address[number],
                    size_bytes=size,
                    used_bytes=used[number],
                    largest_free_bytes=largest[number],
                    is_private=is_private,
                )
            )
    held.sort(key=lambda segment: segment.used_bytes - segment.size_bytes)
    return Fragmentation(
        at_peak_bytes=max(reserved[curves.peak] - allocated[curves.peak], 0),
        most_bytes=max(0, _largest_gap(curves, segment_events)),
        at_end_bytes=max(reserved[-1] - allocated[-1], 0),
        idle_segments_bytes=idle,
        private_pool_bytes=private,
        held=tuple(held[:_MOST_SEGMENTS]),
    )


def _largest_gap(curves: Curves, segment_events: Sequence[int]) -> int:
    """Reserved bytes change only with the segments, so between two changes the gap is largest at the lowest point."""
    bounds = [0, *(event + 1 for event in segment_events), len(curves.allocated)]
    return max(
        curves.reserved[low] - min(curves.allocated[low:high]) for low, high in pairwise(bounds) if low < high
    )


def _use_of_segments(snapshot: Snapshot) -> tuple[list[int], list[int]]:
    """Bytes in use and the largest free block of every segment at the end."""
    used, largest = [0] * len(snapshot.segments), [0] * len(snapshot.segments)
    blocks = snapshot.end_blocks
    for segment, size, state in zip(blocks.segment, blocks.size, blocks.state, strict=True):
        if state == BlockState.INACTIVE:
            largest[segment] = max(largest[segment], size)
        else:
            used[segment] += size
    return used, largest
