"""Which few blocks of a model are run for all of them, and which of those each block is the same as.

What a block allocates and frees follows from its kind, and from whether it is among the first or the last: it frees
what the block before it handed over, and in backward what the block after it did, which blocks of every kind hand
over alike. A program therefore runs one block of each such sort. Where segments of several blocks are checkpointed as
one, the first and the last of a segment are sorts of their own; there, and where a block gathers the parameters of
the next, the kinds of the blocks beside it count, and the row of blocks that is run gives each such neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

__all__ = ["StandIns", "each_for_itself", "stand_ins"]


@dataclass(frozen=True, slots=True, eq=False)
class StandIns:
    """``shown``: the model's blocks that a program runs, in order. ``of``: for each block of the model, the place
    in ``shown`` of the one that stands for it. ``blocks``: for each shown block, those that it stands for.

    ``segment``: how many blocks are checkpointed as one, of which the last may have fewer.
    """

    shown: tuple[int, ...]
    of: tuple[int, ...]
    blocks: tuple[tuple[int, ...], ...]
    segment: int = 1

    @property
    def segments(self) -> tuple[range, ...]:
        """The model's blocks, segment by segment."""
        count = len(self.of)
        return tuple([range(at, min(at + self.segment, count)) for at in range(0, count, self.segment)])

    @property
    def shown_segments(self) -> tuple[int, ...]:
        """How many blocks are shown of each segment that is."""
        starts = [at for at, block in enumerate(self.shown) if block % self.segment == 0]
        return tuple([end - start for start, end in zip(starts, [*starts[1:], len(self.shown)], strict=True)])


@lru_cache(maxsize=512)
def each_for_itself(blocks: int, segment: int) -> StandIns:
    """Every block of a model is run."""
    all_blocks = tuple(range(blocks))
    return StandIns(all_blocks, all_blocks, tuple([(block,) for block in all_blocks]), segment)


@lru_cache(maxsize=512)
def stand_ins(
    kinds: tuple[str, ...], segment: int = 1, reach: int = 1, *, minds_kinds: bool = False
) -> StandIns:
    """The stand-ins of a model whose blocks are of these kinds, ``segment`` of them checkpointed as one.

    ``reach``: how many blocks at the start are cases of their own, as is the last one. ``minds_kinds``: what a block
    does depends on the kinds of as many blocks before it and of the one after it, too, as it always does in segments.

    From a block that is shown, the row goes on behind the last block like it that adds none that are new. A sort is
    shown again where kinds count, so that all have neighbours as in the model, and where a segment needs its first or
    last block. Every block
    that is shown stands for itself, and the first of each sort for all others, so that of a kind that shares a table
    or mask the block nearest the model's start is one that is shown.
    """
    count = len(kinds)
    padded = ("",) * reach + kinds + ("",)
    minds_kinds = (minds_kinds or segment > 1) and len(set(kinds)) > 1
    sorts = [
        (
            padded[at : at + reach + 2] if minds_kinds else (kind,),
            min(at, reach),
            at == count - 1,
            at % segment == 0,
            at % segment == segment - 1,
        )
        for at, kind in enumerate(kinds)
    ]
    shown: list[int] = []
    first: dict[tuple[tuple[str, ...], int, bool, bool, bool], int] = {}
    at = 0
    while at < count:
        *_, ends_model, starts, ends = sorts[at]
        is_border = segment > 1 and (starts or ends or ends_model)
        if minds_kinds or is_border or sorts[at] not in first:
            first.setdefault(sorts[at], len(shown))
            shown.append(at)
        last = at
        for later in range(at + 1, count):
            if sorts[later] not in first:
                break
            if sorts[later] == sorts[at]:
                last = later
        at = last + 1
    own = {block: place for place, block in enumerate(shown)}
    of = tuple([own.get(block, first[sort]) for block, sort in enumerate(sorts)])
    stood: list[list[int]] = [[] for _ in shown]
    for block, place in enumerate(of):
        stood[place].append(block)
    return StandIns(tuple(shown), of, tuple(map(tuple, stood)), segment)
