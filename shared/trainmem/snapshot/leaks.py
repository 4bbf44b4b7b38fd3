"""What grows from step to step, and which code allocated it."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from trainmem.snapshot.replay import Replay
from trainmem.snapshot.sites import StackFacts
from trainmem.snapshot.steps import StepPeak
from trainmem.units import MIB

__all__ = ["Growth", "Leak", "find_leak"]

_LEAST_STEPS = 3
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


def find_leak(replay: Replay, facts: StackFacts, steps: Sequence[StepPeak]) -> Leak | None:
    """Compare the ends of the steps from the second on; the first makes state that stays.

    A site leaks when what it holds at the end of a step rises in most steps and by 1 MiB in all. Blocks of
    one site that come and go cancel out.
    """
    steps = [step for step in steps if step.step >= 2]
    if len(steps) < _LEAST_STEPS:
        return None
    ends = [step.end for step in steps]
    levels: dict[str, list[int]] = defaultdict(lambda: [0] * (len(ends) + 1))
    counts: dict[str, list[int]] = defaultdict(lambda: [0] * (len(ends) + 1))
    blocks, sites = replay.blocks, facts.sites
    for start, end, size, stack in zip(blocks.start, blocks.end, blocks.size, blocks.stack, strict=True):
        # Alive at the instants start + 1 to end; the end of a step is the instant of its last event.
        first, last = bisect_right(ends, start), bisect_right(ends, end)
        if first < last:
            site = sites[stack]
            levels[site][first] += size
            levels[site][last] -= size
            counts[site][first] += 1
            counts[site][last] -= 1
    growing: list[Growth] = []
    for site, changes in levels.items():
        held = _summed(changes)
        rises = sum(after > before for before, after in pairwise(held))
        grown = held[-1] - held[0]
        if grown < _LEAST_TOTAL_BYTES or rises < _LEAST_RISES * (len(held) - 1):
            continue
        number = _summed(counts[site])
        intervals = len(held) - 1
        growing.append(
            Growth(
                site=site,
                bytes_a_step=grown // intervals,
                blocks_a_step=round((number[-1] - number[0]) / intervals, 2),
                held_bytes=held[-1],
            )
        )
    growing.sort(key=lambda growth: -growth.bytes_a_step)
    total = sum(growth.bytes_a_step for growth in growing)
    if total < _LEAST_BYTES_A_STEP:
        return None
    return Leak(bytes_a_step=total, first_step=steps[0].step, last_step=steps[-1].step, sites=growing[:20])


def _summed(changes: list[int]) -> list[int]:
    total, held = 0, []
    for change in changes[:-1]:
        total += change
        held.append(total)
    return held
