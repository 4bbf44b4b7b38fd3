"""A program's parts in the order of a model's blocks, ready to be laid down with the sizes of a job."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, count

from trainmem.allocator import ALLOCATED, ALLOCATED_FIRST, ALLOCATED_ONCE, GIVEN, Parts, Row
from trainmem.buckets import BUCKETS
from trainmem.tape.ledger import LOADED_KEYS
from trainmem.tape.program import Part, PartLabel, Program, in_order
from trainmem.tape.stand_ins import StandIns

__all__ = ["ProgramRow", "made_once", "program_row"]

_WORKSPACE = BUCKETS.index("workspace")


@dataclass(frozen=True, slots=True, eq=False)
class ProgramRow:
    """A micro batch of a model with so many blocks, its sizes left open.

    ``places``: for each place of the row, the number of the part and the model's block that it is laid down for.
    ``backward``: the first place of the backward pass. ``given``: names of the loaded parameters that a first row
    frees, as `Row.lay` asks for their numbers. ``gradients``: by parameter, the place that makes it and its rank
    there.
    """

    row: Row
    places: tuple[tuple[int, int], ...]
    backward: int
    given: tuple[str, ...]
    gradients: dict[str, tuple[int, int]]


@lru_cache(maxsize=64)
def _ranks(program: Program) -> list[int]:
    """By key, a number for it among its part's allocations; -1 of those that are made once.

    Blocks of one kind have the same ranks, whichever of them makes what is made once. What a block hands over has
    ranks that those of other kinds give it, too, though they may make more before it.
    """
    # in segments, a block hands more to a last one than to others, and neighbours are of the kinds that they have
    is_segmented = any(part.label[0] == "again" for part in program.parts)
    handed = {} if is_segmented else _handed_over(program)
    widths: Counter[tuple[str, int]] = Counter()
    for keys in handed.values():
        for to, some in keys.items():
            widths[to] = max(widths[to], len(some))
    order = sorted(widths)
    begins = dict(zip(order, accumulate([widths[to] for to in order[:-1]], initial=0), strict=bool(order)))
    out: list[int] = []
    for number, part in enumerate(program.parts):
        ranks = count(widths.total())
        own = {
            key: begins[to] + rank
            for to, keys in handed.get(number, {}).items()
            for rank, key in enumerate(sorted(keys))
        }
        out += [-1 if key in program.once else own[key] if key in own else next(ranks) for key in part.keys]
    return out


def _handed_over(program: Program) -> dict[int, dict[tuple[str, int], set[int]]]:
    """By part, the keys of what other blocks free: by their run, and by whether they come before or after it."""
    found: dict[int, dict[tuple[str, int], set[int]]] = defaultdict(lambda: defaultdict(set))
    for part in program.parts:
        run, block = part.label
        if program.outside(block):
            continue
        for event in part.events:
            if event < 0 and ~event < LOADED_KEYS:
                home = program.part_of[~event]
                away = block - program.parts[home].label[1]
                if away and not program.outside(program.parts[home].label[1]):
                    found[home][run, max(-1, min(away, 2))].add(~event)
    return found


@lru_cache(maxsize=64)
def made_once(program: Program) -> dict[int, int]:
    """By key, how often: a library's workspace once in a step, a parameter's new memory once in each block."""
    return {
        key: ALLOCATED_ONCE if program.bucket_of[key] == _WORKSPACE else ALLOCATED_FIRST
        for key in program.once
    }


@dataclass(frozen=True, slots=True, eq=False)
class _Coded:
    """A program's `Parts`; for each of them by slot the part that made what is freed, or ``~index`` of a parameter
    in `Program.loaded`."""

    parts: Parts
    slots: tuple[tuple[int, ...], ...]


@lru_cache(maxsize=64)
def _coded(program: Program) -> _Coded:
    ranks = _ranks(program)
    codes, slots = zip(*[_code(program, part) for part in program.parts], strict=True)
    return _Coded(
        Parts(codes, [1 + max([ranks[key] for key in part.keys], default=-1) for part in program.parts]),
        slots,
    )


def _code(program: Program, part: Part) -> tuple[list[int], tuple[int, ...]]:
    part_of, size_of, ranks = program.part_of, program.size_of, _ranks(program)
    once = made_once(program)
    code: list[int] = []
    slots: dict[int, int] = {}
    for event in part.events:
        if event >= 0:
            code += (once.get(event, ALLOCATED), size_of[event], ranks[event])
        elif ~event < LOADED_KEYS:
            key = ~event
            code += (slots.setdefault(part_of[key], len(slots)), size_of[key], ranks[key])
        else:
            code += (slots.setdefault(~(~event - LOADED_KEYS), len(slots)), GIVEN, 0)
    return code, tuple(slots)


@lru_cache(maxsize=256)
def program_row(program: Program, stands: StandIns) -> ProgramRow:
    """The row of a program for a model's blocks."""
    coded, order = _coded(program), in_order(program, stands)
    labels = [(program.parts[number].label[0], real) for number, real, _ in order]
    place = {label: at for at, label in enumerate(labels)}
    homes = _Homes(program, stands, place)
    return ProgramRow(
        row=Row(
            coded.parts,
            [number for number, _, _ in order],
            [homes.of(number, real, last, coded.slots[number]) for number, real, last in order],
        ),
        places=tuple([(number, real) for number, real, _ in order]),
        backward=next(at for at, (direction, _) in enumerate(labels) if direction != "forward"),
        given=tuple(homes.given),
        gradients=_gradients(program, stands, place),
    )


class _Homes:
    """Where a row made what its parts free: places by slot, or ``~index`` of a name in ``given``.

    Of a block that stands for several, the one whose turn comes last alone frees what the program shares with
    other parts: the tables and masks that all blocks of its kind use. What is freed of a block outside the blocks
    is freed of each that it stands for.
    """

    def __init__(self, program: Program, stands: StandIns, place: Mapping[PartLabel, int]) -> None:
        self.program, self.stands, self.place = program, stands, place
        self.given: dict[str, int] = {}
        self._outside = [program.outside(part.label[1]) for part in program.parts]
        self._all = [
            tuple([place[part.label[0], real] for real in program.real_blocks(part.label[1], stands)])
            for part in program.parts
        ]

    def of(self, number: int, real: int, last: bool, slots: Sequence[int]) -> list[tuple[int, ...]]:
        """Of a part that is laid down as the model's block ``real``; ``last``: of equal blocks."""
        parts, outside = self.program.parts, self._outside
        further = real - parts[number].label[1]
        homes: list[tuple[int, ...]] = []
        for home in slots:
            if home < 0:
                name = _real_name(self.program.loaded[~home], further)
                homes.append((~self.given.setdefault(name, len(self.given)),))
            elif outside[number]:
                homes.append(self._all[home])
            elif outside[home]:
                homes.append(self._all[home] if last else ())
            else:
                run, block = parts[home].label
                homes.append((self.place[run, self._beside(parts[number].label[1], block, real)],))
        return homes

    def _beside(self, block: int, home: int, real: int) -> int:
        """Which of the model's blocks ``home`` is to ``block`` where that is laid down as ``real``.

        One so many blocks away, or the first of its segment, of which a program may run fewer blocks.
        """
        stands, away = self.stands, home - block
        if abs(away) <= 1 or stands.segment == 1 or len(stands.shown) == len(stands.of):
            return real + away
        if stands.shown[home] == stands.shown[block] // stands.segment * stands.segment:
            return real // stands.segment * stands.segment
        raise ValueError(
            f"block {block} frees what block {home} made, which is neither beside it nor the first"
        )


def _gradients(
    program: Program, stands: StandIns, place: Mapping[PartLabel, int]
) -> dict[str, tuple[int, int]]:
    """By parameter, the place that makes its gradient and the rank of that in its part."""
    ranks = _ranks(program)
    out: dict[str, tuple[int, int]] = {}
    for name, key in program.gradients.items():
        run, block = program.parts[program.part_of[key]].label
        rank = ranks[key]
        if not name.startswith("layers."):
            out.setdefault(name, (place[run, program.real_blocks(block, stands)[0]], rank))
            continue
        _, number, local = name.split(".", 2)
        further = int(number) - block
        for real in program.real_blocks(block, stands):
            out.setdefault(f"layers.{real + further}.{local}", (place[run, real], rank))
    return out


def _real_name(name: str, further: int) -> str:
    """A parameter of a block of the program, so many of the model's blocks further on."""
    if not further or not name.startswith("layers."):
        return name
    _, number, local = name.split(".", 2)
    return f"layers.{int(number) + further}.{local}"
