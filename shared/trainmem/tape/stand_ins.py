"""Which few blocks of a model are run for all of them, and which of those each block is the same as.

What a block allocates and frees follows from its kind and from those of the blocks beside it: it frees what the
block before it handed over, and in backward what the block after it did. A program therefore runs every
neighbourhood of kinds once, in a row of blocks in which each has the neighbours that it has in the model. Where
segments of several blocks are checkpointed as one, the first and the last of a segment are kinds of their own.
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
def stand_ins(kinds: tuple[str, ...], segment: int = 1, reach: int = 1) -> StandIns:
    """The stand-ins of a model whose blocks are of these kinds, ``segment`` of them checkpointed as one.

    ``reach``: of how many blocks before it a block's events depend on.

    From a block that is shown, the row goes on behind the last block with the same neighbours that adds none that
    are new. Every block that is shown stands for itself, and the first of each neighbourhood for all others, so that of
    a kind that shares a table or mask the block nearest the model's start is one that is shown.
    """
    padded = ("",) * reach + kinds + ("",)
    around = [
        (padded[at : at + reach + 2], at % segment == 0, at % segment == segment - 1 or at == len(kinds) - 1)
        for at in range(len(kinds))
    ]
    shown: list[int] = []
    first: dict[tuple[tuple[str, ...], bool, bool], int] = {}
    at = 0
    while at < len(kinds):
        first.setdefault(around[at], len(shown))
        shown.append(at)
        last = at
        for later in range(at + 1, len(kinds)):
            if around[later] not in first:
                break
            if around[later] == around[at]:
                last = later
        at = last + 1
    own = {block: place for place, block in enumerate(shown)}
    of = tuple([own.get(block, first[context]) for block, context in enumerate(around)])
    stood: list[list[int]] = [[] for _ in shown]
    for block, place in enumerate(of):
        stood[place].append(block)
    return StandIns(tuple(shown), of, tuple(map(tuple, stood)), segment)
