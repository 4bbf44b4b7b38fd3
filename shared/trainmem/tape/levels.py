"""How high memory stands through micro batches: what each part of a program adds, summed and not laid out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from trainmem.tape.ledger import LOADED_KEYS
from trainmem.tape.program import Part, Program, in_order
from trainmem.tape.stand_ins import StandIns
from trainmem.tape.step import size_in_bytes

__all__ = ["Levels"]


@dataclass(frozen=True, slots=True, eq=False)
class _Steady:
    """A part's events in a steady step, without those of the first step only.

    ``signed``: the index of a size that is allocated, ``~index`` of one that is freed. ``shared``: positions of
    frees of what other blocks use too, which only the last of equal blocks makes. ``each``: (position, block) of
    frees that happen to every block for which the program's stands.
    """

    events: tuple[int, ...]
    signed: tuple[int, ...]
    buckets: tuple[int, ...]
    shared: tuple[int, ...]
    each: tuple[tuple[int, int], ...]


@lru_cache(maxsize=1024)
def _steady(program: Program) -> tuple[_Steady, ...]:
    return tuple([_steady_part(program, part) for part in program.parts])


def _steady_part(program: Program, part: Part) -> _Steady:
    size_of, bucket_of, part_of, once = program.size_of, program.bucket_of, program.part_of, program.once
    events = part.events
    if program.loaded or not once.isdisjoint(part.keys):
        events = tuple([event for event in events if event not in once and event > ~LOADED_KEYS])
    signed = tuple([size_of[event] if event >= 0 else ~size_of[~event] for event in events])
    buckets = tuple([bucket_of[event] if event >= 0 else bucket_of[~event] for event in events])
    outside = program.outside(part.label[1])
    apart = [program.outside(other.label[1]) != outside for other in program.parts]
    crossing = [at for at, event in enumerate(events) if event < 0 and apart[part_of[~event]]]
    homes = [(at, program.parts[part_of[~events[at]]].label[1]) for at in crossing]
    return _Steady(
        events=events,
        signed=signed,
        buckets=buckets,
        shared=() if outside else tuple(crossing),
        each=tuple(homes) if outside else (),
    )


@dataclass(slots=True, eq=False)
class _Walked:
    """A part with its sizes: what each event changes, the sum, the highest level on the way and after which event."""

    part: _Steady
    number: int
    changes: list[int]
    net: int
    high: int
    at: int


class Levels:
    """Walks the parts of micro batches, keeping the level, the phases' peaks and where the highest was.

    ``base``: bytes by bucket when the first begins. Sizes are rounded up to 512 bytes.
    """

    def __init__(self, stands: StandIns, base: list[int]) -> None:
        self.stands = stands
        self.base = base
        self.level = sum(base)
        self.top = self.level
        self.phases: dict[str, int] = {}
        self._where = -1
        self._walked: list[tuple[Program, _Walked, int]] = []

    def micro_batch(self, program: Program, dims: Mapping[str, int]) -> None:
        """One forward and backward."""
        sizes = [(size_in_bytes(spec, dims) + 511) & ~511 for spec in program.sizes]
        steady = _steady(program)
        walked: dict[tuple[int, bool], _Walked] = {}
        level, tops = self.level, {"forward": 0, "backward": 0}
        for number, real, last in in_order(program, self.stands):
            key = number, last or not steady[number].shared
            part = walked.get(key)
            if part is None:
                part = walked[key] = self._walk(steady[number], number, sizes, last=key[1])
            phase = program.parts[number].phase
            top = level + part.high
            if top > tops[phase]:
                tops[phase] = top
                if top > self.top:
                    self.top, self._where = top, len(self._walked)
            level += part.net
            self.phases[f"after_{phase}_bytes"] = level
            self._walked.append((program, part, real))
        for name, top in tops.items():
            peak = f"peak_{name}_bytes"
            self.phases[peak] = max(self.phases.get(peak, 0), top)
        self.level = level

    def _walk(self, part: _Steady, number: int, sizes: list[int], *, last: bool) -> _Walked:
        changes = [sizes[index] if index >= 0 else -sizes[~index] for index in part.signed]
        for at, block in part.each:
            changes[at] *= len(self.stands.blocks[block])
        if not last:
            for at in part.shared:
                changes[at] = 0
        levels = list(accumulate(changes, initial=0))
        high = max(levels)
        return _Walked(part, number, changes, levels[-1], high, levels.index(high) - 1)

    def peak(self) -> tuple[int, str, str, str, list[int]]:
        """The highest level, its phase, op and module, and its buckets."""
        totals = list(self.base)
        if self._where < 0:
            return self.top, "forward", "", "", totals
        for walked, times in Counter([walked for _, walked, _ in self._walked[: self._where]]).items():
            for bucket, change in zip(walked.part.buckets, walked.changes, strict=True):
                totals[bucket] += times * change
        program, walked, real = self._walked[self._where]
        part, end = walked.part, walked.at + 1
        for bucket, change in zip(part.buckets[:end], walked.changes[:end], strict=True):
            totals[bucket] += change
        # the highest level is reached where something is allocated
        name = program.name_of[part.events[walked.at]]
        module = f"layers.{real}" if 0 <= real < len(self.stands.of) else ""
        return self.top, program.parts[walked.number].phase, name, module, totals
