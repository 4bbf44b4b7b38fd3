"""The scores over the vocabulary: the head's output, its copies for the loss, and their gradients."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from trainmem.snapshot.case import Case, Index, Kind
from trainmem.snapshot.frames import Mark
from trainmem.units import MIB

__all__ = ["settle_logits"]

_NEAR = 0.95
"""Logits are shifted by a token before the loss, so their copies may be a little smaller."""

_BLOCKS_BEFORE_LOSS = 48
"""How far before the loss the head's output, its cast and its inputs are looked for."""

_FIRST_GRADIENTS = 8
_OPEN = (Kind.SAVED, Kind.FORWARD_TEMPORARY, Index.ACTIVATIONS)


def settle_logits(case: Case) -> None:
    """Find them by their size next to the loss, in forward and at the start of backward."""
    named = _losses(case)
    for span, members in named.items():
        _settle_pass(case, span, members)
    for span, members in _unnamed_losses(case, named):
        for number in members:
            case.bucket_of[number] = Index.LOGITS
        _settle_pass(case, span, members)


def _losses(case: Case) -> dict[int, list[int]]:
    """Blocks that a loss function allocated, by forward pass."""
    found: dict[int, list[int]] = {}
    bucket_of, marks, stacks = case.bucket_of, case.facts.marks, case.blocks.stack
    at = bucket_of.find(Index.LOGITS)
    while at >= 0:
        if marks[stacks[at]] & Mark.LOSS:
            found.setdefault(case.span_starts[at], []).append(at)
        at = bucket_of.find(Index.LOGITS, at + 1)
    return found


def _unnamed_losses(case: Case, named: dict[int, list[int]]) -> Iterator[tuple[int, list[int]]]:
    """Where no stack names a loss: the largest size at the end of forward that backward at once allocates again."""
    blocks, bucket_of = case.blocks, case.bucket_of
    backward = case.by_kind[Kind.BACKWARD_TEMPORARY]
    for span, (forward, following) in enumerate(zip(case.spans, case.spans[1:], strict=False)):
        if span in named or (forward.phase, following.phase) != ("forward", "backward"):
            continue
        end = bisect_left(blocks.start, following.start)
        tail = [
            number
            for number in range(max(0, end - _BLOCKS_BEFORE_LOSS), end)
            if case.span_starts[number] == span and bucket_of[number] in _OPEN
        ]
        most = max((blocks.requested[number] for number in tail), default=0)
        first = bisect_left(backward, end)
        again = [
            number
            for number in backward[first : first + _FIRST_GRADIENTS]
            if case.span_starts[number] == span + 1 and _alike(blocks.requested[number], most)
        ]
        if most >= MIB and again:
            yield span, [number for number in tail if _alike(blocks.requested[number], most)]


def _settle_pass(case: Case, span: int, members: list[int]) -> None:
    blocks, bucket_of = case.blocks, case.bucket_of
    most = max(blocks.requested[number] for number in members)
    if most < MIB:
        return
    first = next(number for number in members if _alike(blocks.requested[number], most))
    family = [number for number in members if _alike(blocks.requested[number], most)]
    for number in range(max(0, first - _BLOCKS_BEFORE_LOSS), first):
        if (
            case.span_starts[number] == span
            and bucket_of[number] in _OPEN
            and _alike(blocks.requested[number], most)
        ):
            bucket_of[number] = Index.LOGITS
            family.append(number)
    # Each gradient is made while the one before it is alive; a chain that breaks is over.
    alive_until = max(blocks.end[number] for number in family)
    backward = case.by_kind[Kind.BACKWARD_TEMPORARY]
    for at in range(bisect_left(backward, members[-1]), len(backward)):
        number = backward[at]
        if blocks.start[number] > alive_until or case.span_starts[number] > span + 1:
            break
        if bucket_of[number] == Kind.BACKWARD_TEMPORARY and _alike(blocks.requested[number], most):
            bucket_of[number] = Index.LOGITS
            alive_until = max(alive_until, blocks.end[number])


def _alike(size: int, most: int) -> bool:
    """Whether a size is that of the logits, in their own precision or in half of it."""
    return most * _NEAR <= size <= most or most * _NEAR / 2 <= size <= most / 2
