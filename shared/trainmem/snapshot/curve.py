"""Phases of a recording without stacks, from the shape of the allocated bytes alone.

A step is a rise and a fall: forward saves, backward gives back. An optimizer may add a lower hump of its own.
What repeats is taken for the step; nothing is claimed when nothing repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainmem.recording import Phase
from trainmem.snapshot.model import Action, Trace
from trainmem.snapshot.sites import Vote
from trainmem.snapshot.spans import Span

__all__ = ["phases_from_curve", "split_at_peaks"]

_MOST_POINTS = 8192
_LEAST_SWING = 0.1
"""A turning point counts when the curve has swung by this share of its whole range."""

_MOST_HUMPS_A_STEP = 3
_LIKENESS = 0.8


def split_at_peaks(votes: bytearray, allocated: Sequence[int]) -> None:
    """Between the optimizer's regions, call the rise to the highest point forward and the rest backward."""
    start = 0
    while start < len(votes):
        end = start
        while end < len(votes) and votes[end] in (Vote.NONE, Vote.BARE):
            end += 1
        stretch = allocated[start : end + 1]
        if end - start > 1 and max(stretch) > min(stretch[0], stretch[-1]):
            peak = start + stretch.index(max(stretch))
            if start < peak < end:
                votes[start:peak] = bytes([Vote.FORWARD]) * (peak - start)
                if end < len(votes):
                    votes[peak:end] = bytes([Vote.BACKWARD]) * (end - peak)
        start = max(end, start + 1)


@dataclass(frozen=True, slots=True)
class _Hump:
    """A rise and a fall: its ends, its top, and how many bytes are allocated in it."""

    start: int
    top: int
    end: int
    allocations: int
    requested: int


def phases_from_curve(trace: Trace, allocated: Sequence[int]) -> list[Span]:
    """Spans of the steps that repeat, or nothing."""
    humps = _humps(trace, allocated)
    period = next((k for k in range(1, _MOST_HUMPS_A_STEP + 1) if _repeats(humps, k)), 0)
    if not period:
        return []
    # Within a step, the hump with the most allocations is forward and backward; the others are the
    # optimizer's.
    sums = [sum(hump.allocations for hump in humps[offset::period]) for offset in range(period)]
    main = sums.index(max(sums))
    spans: list[Span] = []
    step = 1
    for number, hump in enumerate(humps):
        if number % period == main:
            spans.append(Span("forward", step, hump.start, hump.top))
            spans.append(Span("backward", step, hump.top, hump.end))
        else:
            spans.append(Span("optimizer", step, hump.start, hump.end))
        if (number - main) % period == period - 1:
            step += 1
    first: Phase = "setup"
    if spans[0].start > 0:
        spans.insert(0, Span(first, 0, 0, spans[0].start))
    if spans[-1].end < len(trace):
        last = spans.pop()
        spans.append(Span(last.phase, last.step, last.start, len(trace)))
    return [span for span in spans if span.end > span.start]


def _repeats(humps: list[_Hump], period: int) -> bool:
    pairs = list(zip(humps, humps[period:], strict=False))
    if len(pairs) < max(2, period):
        return False
    return sum(_alike(first, second) for first, second in pairs) >= _LIKENESS * len(pairs) - 0.5


def _alike(first: _Hump, second: _Hump) -> bool:
    return (
        min(first.allocations, second.allocations) >= _LIKENESS * max(first.allocations, second.allocations)
        and min(first.requested, second.requested) >= _LIKENESS * max(first.requested, second.requested)
        and first.allocations > 0
    )


def _humps(trace: Trace, allocated: Sequence[int]) -> list[_Hump]:
    events = len(trace)
    stride = max(1, events // _MOST_POINTS)
    points = [max(allocated[at : at + stride]) for at in range(0, events + 1, stride)]
    lows, tops = _turning_points(points, (max(points) - min(points)) * _LEAST_SWING)
    bounds = [low * stride for low in lows]
    return [
        _hump(trace, start, min(top * stride, events), min(end, events))
        for start, end, top in zip(bounds, [*bounds[1:], events], tops, strict=False)
    ]


def _hump(trace: Trace, start: int, top: int, end: int) -> _Hump:
    sizes = [
        size
        for action, size in zip(trace.action[start:end], trace.size[start:end], strict=True)
        if action == Action.ALLOC
    ]
    return _Hump(start, max(start, min(top, end)), end, len(sizes), sum(sizes))


def _turning_points(points: list[int], swing: float) -> tuple[list[int], list[int]]:
    """Positions of the low points, and of the high point that follows each."""
    if swing <= 0:
        return [], []
    lows, tops = [0], []
    low = high = 0
    rising = True
    for number, value in enumerate(points):
        if rising:
            if value >= points[high]:
                high = number
            elif points[high] - value >= swing:
                tops.append(high)
                rising, low = False, number
        elif value <= points[low]:
            low = number
        elif value - points[low] >= swing:
            lows.append(low)
            rising, high = True, number
    if rising:
        tops.append(high)
    return lows, tops
