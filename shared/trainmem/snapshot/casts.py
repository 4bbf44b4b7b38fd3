"""Autocast's 16-bit copies of weights, among what forward (and a checkpoint's second forward) allocates."""

from __future__ import annotations

from collections import Counter

from trainmem.snapshot.case import Case, Index, Kind
from trainmem.snapshot.frames import Mark

__all__ = ["settle_casts"]

_OPEN = (Kind.SAVED, Kind.FORWARD_TEMPORARY, Kind.RECOMPUTED)
_MOST_OF_THE_WEIGHTS = 0.6


def settle_casts(case: Case) -> None:
    """Copies that autocast's end frees, and blocks of half a weight's size that an operation made on its way."""
    halves = Counter({size // 2: count for size, count in case.weights.items() if size >= 2})
    uses_autocast = case.has_mark(Mark.AUTOCAST_EXIT)
    for number in case.by_kind[Kind.FORWARD_TEMPORARY] if uses_autocast else ():
        if case.marks_of_free(number) & Mark.AUTOCAST_EXIT:
            case.bucket_of[number] = Index.CAST
    forward = sorted(case.by_kind[Kind.SAVED] + case.by_kind[Kind.FORWARD_TEMPORARY])
    if not case.facts.has_python:
        uses_autocast = _covers(case, forward, halves)
    if uses_autocast:
        _claim(case, forward, halves)
    saved: list[int] = []
    for number in case.by_kind[Kind.RECOMPUTED]:
        freed_by = case.marks_of_free(number)
        if freed_by & Mark.AUTOCAST_EXIT:
            case.bucket_of[number] = Index.CAST
        elif not freed_by & Mark.RECOMPUTE:
            saved.append(number)
    if uses_autocast:
        _claim(case, case.by_kind[Kind.RECOMPUTED], halves)
    for number in saved:
        # Of a second forward, what the backward that follows frees was saved for it.
        if case.bucket_of[number] == Kind.RECOMPUTED:
            case.bucket_of[number] = Index.ACTIVATIONS


def _claim(case: Case, numbers: list[int], halves: Counter[int]) -> None:
    """A block of half a weight's size is its cast when its operation goes on to allocate its result.

    Casts of an operation's inputs come before its output, with the same stack. Each weight is cast once a pass.
    """
    blocks, bucket_of = case.blocks, case.bucket_of
    taken: Counter[tuple[int, int]] = Counter()
    last = len(blocks) - 1
    for number in numbers:
        size = blocks.requested[number]
        if size not in halves:
            continue
        place = case.span_starts[number], size
        if bucket_of[number] == Index.CAST:
            taken[place] += 1
        elif (
            bucket_of[number] in _OPEN
            and taken[place] < halves[size]
            and number < last
            and blocks.stack[number + 1] == blocks.stack[number]
            and bucket_of[number + 1] in (*_OPEN, Index.CAST)
        ):
            taken[place] += 1
            bucket_of[number] = Index.CAST


def _covers(case: Case, numbers: list[int], halves: Counter[int]) -> bool:
    """Without stacks: whether the first forward pass has a block of half the size for most of the weights."""
    first = next((n for n, span in enumerate(case.spans) if span.phase == "forward" and span.step > 1), None)
    found = (
        Counter(case.blocks.requested[number] for number in numbers if case.span_starts[number] == first)
        & halves
    )
    covered = sum(size * count for size, count in found.items())
    return covered >= _MOST_OF_THE_WEIGHTS * sum(size * count for size, count in halves.items()) > 0
