"""Moments inside a step that a reader can name: the embedding, some blocks, the logits, the loss.

A recording says which block every allocation belongs to; a landmark is the last event before another block or
another operation begins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trainmem.recording import Phase, Recording

__all__ = ["Landmark", "Span", "landmarks"]

_BLOCK = re.compile(r"(?:^|\.)layers\.(\d+)(?:\.|$)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Landmark:
    """A named moment: ``event`` is the last one that belongs to it."""

    name: str
    event: int
    phase: Phase
    sentence: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """A phase's events, from ``start`` up to ``stop``."""

    phase: Phase
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class _Allocation:
    event: int
    block: int | None
    op: str


def landmarks(recording: Recording, spans: Sequence[Span], *, checkpointed: bool) -> list[Landmark]:
    """The landmarks of the first forward and the first backward among ``spans``, in order.

    Of many blocks the first two, the middle one and the last are named. A recording without blocks has none.
    """
    forward = next((span for span in spans if span.phase == "forward"), None)
    backward = next((span for span in spans if span.phase == "backward"), None)
    found: list[Landmark] = []
    if forward is not None:
        found += _forward(_allocations(recording, forward), forward, checkpointed)
    if backward is not None:
        found += _backward(_allocations(recording, backward), backward, checkpointed)
    return found


def _allocations(recording: Recording, span: Span) -> list[_Allocation]:
    number = sum(1 for value in recording.events[: span.start] if value > 0)
    found = []
    for event in range(span.start, span.stop):
        if recording.events[event] > 0:
            match = _BLOCK.search(recording.module_of[number])
            block = None if match is None else int(match[1])
            found.append(_Allocation(event, block, recording.op_of[number]))
            number += 1
    return found


def _told(blocks: int) -> set[int]:
    return set(range(blocks)) if blocks <= 4 else {0, 1, blocks // 2 - 1, blocks - 1}


def _block_ends(allocations: Sequence[_Allocation], span: Span) -> Iterator[tuple[int, int]]:
    """Each block of the span, in the order of its end, with the last event before the next begins."""
    for here, after in zip(allocations, [*allocations[1:], None], strict=True):
        if here.block is not None and (after is None or after.block != here.block):
            yield here.block, (span.stop if after is None else after.event) - 1


def _forward(allocations: Sequence[_Allocation], span: Span, checkpointed: bool) -> Iterator[Landmark]:
    ends = list(_block_ends(allocations, span))
    first = next((a.event for a in allocations if a.block is not None), None)
    if first is None:
        return
    if first > span.start:
        yield Landmark(
            name="after the embedding",
            event=first - 1,
            phase="forward",
            sentence="Tokens have become vectors: the residual stream that every block reads and adds to.",
        )
    for block, event in ends:
        if block in _told(len(ends)):
            name = f"after block {block + 1} of {len(ends)}"
            sentence = _saved(block, len(ends), checkpointed)
            yield Landmark(name=name, event=event, phase="forward", sentence=sentence)
    after = [a for a in allocations if a.event > ends[-1][1]]
    for part, name, sentence in (
        ("lm_head", "logits", "The head has scored every token of the batch against the whole vocabulary."),
        ("log_softmax", "loss", "The loss works in fp32: it keeps a log-probability for every score."),
    ):
        last = max((i for i, a in enumerate(after) if part in a.op), default=None)
        if last is not None:
            event = after[last].event
            yield Landmark(name=name, event=event, phase="forward", sentence=sentence)


def _saved(block: int, blocks: int, checkpointed: bool) -> str:
    if checkpointed:
        if block == blocks - 1:
            return "One tensor a block is all that forward keeps; the rest will be computed again."
        return "The block keeps its input and lets go of everything else."
    if block == 0:
        return "The block has saved what its backward will need."
    if block == blocks - 1:
        return "Every block has saved its tensors: activations are at their most."
    return "As much again for every block: memory climbs in a straight line."


def _backward(allocations: Sequence[_Allocation], span: Span, checkpointed: bool) -> Iterator[Landmark]:
    ends = list(_block_ends(allocations, span))
    for block, event in ends:
        if block in _told(len(ends)) - {1}:
            again = "It was run forward again, then " if checkpointed else "It "
            yield Landmark(
                name=f"backward of block {block + 1} done",
                event=event,
                phase="backward",
                sentence=f"{again}gave back what it saved and left its gradients, which now stay.",
            )
