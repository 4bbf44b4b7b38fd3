"""What grows from step to step, and which code allocated it."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import compress, pairwise, repeat
from operator import lt
from typing import Literal

from trainmem.snapshot.replay import Replay
from trainmem.snapshot.sites import StackFacts
from trainmem.snapshot.steps import StepPeak
from trainmem.units import MIB

__all__ = ["Growth", "Leak", "find_leak"]

_LEAST_STEPS = 3
_LEAST_EVENTS = 200
_PARTS = 10
_MOST_STEPS = 400
_MOST_SITES = 20
_LEAST_BYTES_A_STEP = 64 << 10
_LEAST_TOTAL_BYTES = 1 * MIB
_LEAST_RISES = 0.8
"""Share of the steps in which a leak must grow."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Growth:
    """One call site that holds more after every step."""

    site: str
    bytes_a_step: int
    blocks_a_step: float
    held_bytes: int
    """At the end of the last step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Leak:
    """Growth of the bytes that outlive their step."""

    bytes_a_step: int
    first_step: int
    last_step: int
    sites: Sequence[Growth]
    unit: Literal["step", "tenth of the recording"] = "step"
    """What counts as a step: without a training step to go by, the recording is cut in ten."""


def find_leak(
    replay: Replay, facts: StackFacts, steps: Sequence[StepPeak], allocated: Sequence[int]
) -> Leak | None:
    """Compare the ends of the steps from the second on; the first makes state that stays.

    Where there are no steps, compare the lowest instants of the tenths of the recording, from the second on.
    """
    if steps:
        later = [step for step in steps if step.step >= 2]
        stride = max(1, -(-len(later) // _MOST_STEPS))
        ends = [step.end for step in later[(len(later) - 1) % stride :: stride]] if later else []
        growing = _growing(replay, facts, allocated, ends, stride)
        first, last = (later[0].step, later[-1].step) if later else (0, 0)
        return _leak(growing, first, last, "step")
    if replay.events < _LEAST_EVENTS:
        return None
    bounds = [part * replay.events // _PARTS for part in range(1, _PARTS + 1)]
    lows = [low + allocated[low:high].index(min(allocated[low:high])) for low, high in pairwise(bounds)]
    return _leak(_growing(replay, facts, allocated, lows, 1), 2, _PARTS, "tenth of the recording")


def _leak(
    growing: list[Growth], first: int, last: int, unit: Literal["step", "tenth of the recording"]
) -> Leak | None:
    total = sum(growth.bytes_a_step for growth in growing)
    if total < _LEAST_BYTES_A_STEP:
        return None
    return Leak(bytes_a_step=total, first_step=first, last_step=last, sites=growing, unit=unit)


def _growing(
    replay: Replay, facts: StackFacts, allocated: Sequence[int], ends: list[int], stride: int
) -> list[Growth]:
    """Sites whose bytes at these instants rise in most of them, and by 1 MiB in all.

    Blocks of one site that come and go cancel out.
    """
    if len(ends) < _LEAST_STEPS or allocated[ends[-1]] - allocated[ends[0]] < _LEAST_TOTAL_BYTES:
        return []
    numbers, suspects = _suspects(replay, facts, ends)
    levels: dict[str, list[int]] = {site: [0] * (len(ends) + 1) for site in suspects}
    counts: dict[str, list[int]] = {site: [0] * (len(ends) + 1) for site in suspects}
    blocks, sites = replay.blocks, facts.sites
    for number in numbers:
        site = sites[blocks.stack[number]]
        if site in levels:
            first, last = bisect_right(ends, blocks.start[number]), bisect_right(ends, blocks.end[number])
            levels[site][first] += blocks.size[number]
            levels[site][last] -= blocks.size[number]
            counts[site][first] += 1
            counts[site][last] -= 1
    growing: list[Growth] = []
    for site, changes in levels.items():
        held = _summed(changes)
        rises = sum(after > before for before, after in pairwise(held))
        grown = held[-1] - held[0]
        if grown < _LEAST_TOTAL_BYTES or rises < _LEAST_RISES * (len(held) - 1):
            continue
        blocks_held = _summed(counts[site])
        intervals = (len(held) - 1) * stride
        growing.append(
            Growth(
                site=site,
                bytes_a_step=grown // intervals,
                blocks_a_step=round((blocks_held[-1] - blocks_held[0]) / intervals, 2),
                held_bytes=held[-1],
            )
        )
    growing.sort(key=lambda growth: -growth.bytes_a_step)
    return growing


def _suspects(replay: Replay, facts: StackFacts, ends: list[int]) -> tuple[list[int], list[str]]:
    """Blocks that are there at the end of a step, and the sites that hold more at the last end than the first."""
    blocks, sites = replay.blocks, facts.sites
    firsts = map(bisect_right, repeat(ends), blocks.start)
    lasts = map(bisect_right, repeat(ends), blocks.end)
    numbers = list(compress(range(len(blocks)), map(lt, firsts, lasts)))
    grown: dict[str, int] = defaultdict(int)
    for number in numbers:
        start, end = blocks.start[number], blocks.end[number]
        # Alive at the instants start + 1 to end; the end of a step is the instant of its last event.
        at_last, at_first = start < ends[-1] <= end, start < ends[0] <= end
        if at_last != at_first:
            grown[sites[blocks.stack[number]]] += blocks.size[number] if at_last else -blocks.size[number]
    suspects = [site for site in nlargest(_MOST_SITES, grown, key=grown.__getitem__) if grown[site] > 0]
    return numbers, suspects


def _summed(changes: list[int]) -> list[int]:
    total, held = 0, []
    for change in changes[:-1]:
        total += change
        held.append(total)
    return held
