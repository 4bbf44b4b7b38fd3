"""Which few blocks of a model are run for all of them, and which of those each block is the same as.

What a block allocates and frees follows from its kind and from those of the blocks beside it: it frees what the
block before it handed over, and in backward what the block after it did. A program therefore runs every
neighbourhood of kinds once, in a row of blocks in which each has the neighbours that it has in the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

__all__ = ["StandIns", "stand_ins"]


@dataclass(frozen=True, slots=True, eq=False)
class StandIns:
    """``shown``: the model's blocks that a program runs, in order. ``of``: for each block of the model, the place
    in ``shown`` of the one that stands for it. ``blocks``: for each shown block, those that it stands for.

    A block is what a program treats as one: several layers under sqrt checkpointing.
    """

    shown: tuple[int, ...]
    of: tuple[int, ...]
    blocks: tuple[tuple[int, ...], ...]


@lru_cache(maxsize=512)
def stand_ins(kinds: tuple[str, ...], unit: int = 1, reach: int = 1) -> StandIns:
    """The stand-ins of a model whose layers are of these kinds, ``unit`` layers to a block.

    ``reach``: of how many blocks before it a block's events depend on.

    From a block that is shown, the row goes on behind the last block with the same neighbours that adds none that
    are new. The first of each neighbourhood stands for all, so that of a kind that shares a table or mask the
    block nearest the model's start is one that is shown.
    """
    blocks = [kinds[start : start + unit] for start in range(0, len(kinds), unit)]
    beyond: list[tuple[str, ...]] = [()]
    padded = beyond * reach + blocks + beyond
    around = [tuple(padded[at : at + reach + 2]) for at in range(len(blocks))]
    shown: list[int] = []
    first: dict[tuple[tuple[str, ...], ...], int] = {}
    at = 0
    while at < len(blocks):
        first.setdefault(around[at], len(shown))
        shown.append(at)
        last = at
        for later in range(at + 1, len(blocks)):
            if around[later] not in first:
                break
            if around[later] == around[at]:
                last = later
        at = last + 1
    of = tuple(first[context] for context in around)
    stood: list[list[int]] = [[] for _ in shown]
    for block, place in enumerate(of):
        stood[place].append(block)
    return StandIns(tuple(shown), of, tuple(map(tuple, stood)))
