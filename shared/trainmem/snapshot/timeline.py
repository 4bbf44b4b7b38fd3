"""Allocated, requested and reserved bytes over the recording.

An instant is a number of events: instant 0 is before the first event, instant k after the first k. A block
allocated at event s and freed at event e is there at the instants s + 1 to e.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat

from trainmem.snapshot.model import Action, Trace
from trainmem.snapshot.rejected import SnapshotRejected
from trainmem.snapshot.replay import BEFORE, Replay

__all__ = ["Curves", "curves_of", "highest_instants", "live_at", "requested_at"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Curves:
    """One entry an instant."""

    allocated: array[int]
    reserved: array[int]
    peak: int
    """The first instant at which the most is allocated."""

    most_reserved: int


def curves_of(trace: Trace, replay: Replay) -> Curves:
    """The two curves of a replayed trace."""
    levels = replay.allocated if replay.allocated is not None else _summed(replay)
    allocated, reserved = _array(levels), _reserved(trace, replay)
    return Curves(
        allocated=allocated,
        reserved=reserved,
        peak=levels.index(max(levels)),
        most_reserved=max(reserved[event + 1] for event in (-1, *replay.segment_events)),
    )


def live_at(replay: Replay, instant: int) -> Sequence[int]:
    """Numbers of the blocks that are allocated at an instant."""
    blocks = replay.blocks
    return [
        number
        for number, (start, end) in enumerate(zip(blocks.start, blocks.end, strict=True))
        if start < instant <= end
    ]


def highest_instants(curves: Curves, stretches: int, start: int = 0, end: int | None = None) -> list[int]:
    """The highest instant of each of so many equal stretches, the first and last one, and the peak if inside."""
    allocated = curves.allocated
    end = len(allocated) - 1 if end is None else end
    found = {start, end} | ({curves.peak} if start <= curves.peak <= end else set())
    for number in range(stretches):
        low = start + number * (end - start) // stretches
        stretch = allocated[low : start + (number + 1) * (end - start) // stretches + 1]
        found.add(low + stretch.index(max(stretch)))
    return sorted(found)


def requested_at(replay: Replay, instants: Sequence[int]) -> list[int]:
    """What the program had asked for at some instants (in order): the allocated bytes without rounding and rests."""
    blocks = replay.blocks
    changes = [0] * (len(instants) + 1)
    firsts = map(bisect_right, repeat(instants), blocks.start)
    lasts = map(bisect_right, repeat(instants), blocks.end)
    for first, last, requested in zip(firsts, lasts, blocks.requested, strict=True):
        if first < last:
            changes[first] += requested
            changes[last] -= requested
    return list(accumulate(changes[:-1]))


def _reserved(trace: Trace, replay: Replay) -> array[int]:
    curve = array("q")
    level = replay.reserved_at_start_bytes
    for event in replay.segment_events:
        curve.extend(_constant(level, event + 1 - len(curve)))
        appears = trace.action[event] in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
        level += trace.size[event] if appears else -trace.size[event]
    curve.extend(_constant(level, replay.events + 1 - len(curve)))
    return curve


def _constant(level: int, count: int) -> array[int]:
    return _array([level]) * count


def _summed(replay: Replay) -> list[int]:
    blocks = replay.blocks
    deltas = [0] * (replay.events + 2)
    for start, end, size in zip(blocks.start, blocks.end, blocks.size, strict=True):
        if end != BEFORE:
            deltas[start + 1] += size
            deltas[end + 1] -= size
    return list(accumulate(deltas[:-1]))


def _array(values: list[int]) -> array[int]:
    try:
        return array("q", values)
    except OverflowError:
        raise SnapshotRejected("not opened: its sizes add up to more bytes than can be addressed") from None
