"""What lifetimes leave open and sizes decide: casts of weights, logits, gradients, workspaces, master
weights.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from trainmem.buckets import BUCKETS
from trainmem.snapshot.frames import Mark
from trainmem.snapshot.model import Trace
from trainmem.snapshot.replay import Blocks
from trainmem.snapshot.sites import StackFacts
from trainmem.snapshot.spans import Span
from trainmem.units import MIB

__all__ = ["KINDS", "Kind", "SizeJudge"]

_WEIGHTS = BUCKETS.index("weights")
_MASTER = BUCKETS.index("master_weights")
_GRADIENTS = BUCKETS.index("gradients")
_STATE = BUCKETS.index("optimizer_state")
_CAST = BUCKETS.index("cast_cache")
_ACTIVATIONS = BUCKETS.index("activations")
_LOGITS = BUCKETS.index("logits")
_TEMPORARIES = BUCKETS.index("temporaries")
_WORKSPACE = BUCKETS.index("workspace")

_WORKSPACE_BYTES = frozenset(
    # cuBLAS: 32 MiB on Hopper and newer, 8,519,680 bytes before; cuBLASLt: 1 MiB, or 4 KiB times its setting.
    {32 * MIB, 8_519_680, 8_388_608, 16_777_216, 4 * MIB, 1 * MIB}
)
_NEAR = 0.95
"""Logits are shifted by a token before the loss, so their copies may be a little smaller."""

_MOST_INPUTS = 6
_NEARLY_ALL = 0.9
_BLOCKS_BEFORE_LOSS = 48
"""How far before the loss the head's output, its cast and its inputs are looked for."""


class Kind:
    """Verdicts that need a look at sizes. They start above the indices of the buckets."""

    SAVED: Final = 20
    """Allocated in forward, freed in backward."""

    FORWARD_TEMPORARY: Final = 21
    KEPT_FROM_FORWARD: Final = 22
    RECOMPUTED: Final = 23
    """Allocated by a checkpoint's second forward and freed in the same backward."""

    BACKWARD_TEMPORARY: Final = 24
    KEPT_FROM_BACKWARD: Final = 25
    KEPT_FROM_SETUP: Final = 26
    BEFORE: Final = 27
    SAVED_BEFORE: Final = 28
    CUT_OFF: Final = 29
    """Allocated in a forward in which the recording, or the program, ended: it may yet have been needed."""


KINDS = tuple(value for name, value in vars(Kind).items() if name.isupper())


@dataclass(slots=True)
class SizeJudge:
    """Replaces every `Kind` in ``bucket_of`` by a bucket."""

    trace: Trace
    blocks: Blocks
    facts: StackFacts
    spans: Sequence[Span]
    span_starts: Sequence[int]
    span_ends: Sequence[int]
    never: int
    bucket_of: bytearray
    by_kind: dict[int, list[int]]
    failed: bool
    """Whether memory ran out during the recording."""

    weights: Counter[int] = field(init=False, default_factory=Counter)
    """How many weights there are of each requested size."""

    halves: Counter[int] = field(init=False, default_factory=Counter)
    casts: bool = field(init=False, default=False)

    def settle(self) -> None:
        """Decide the kinds in the order in which they depend on each other."""
        self._count_weights()
        self._settle_gradients()
        self._settle_setup()
        self._settle_before()
        self._count_weights()
        self.casts = any(marks & Mark.AUTOCAST_EXIT for marks in self.facts.marks)
        self.halves = Counter({size // 2: count for size, count in self.weights.items() if size >= 2})
        self._settle_forward()
        self._settle_recomputed()
        self._settle_logits()
        for kind, bucket in (
            (Kind.SAVED, _ACTIVATIONS),
            (Kind.SAVED_BEFORE, _ACTIVATIONS),
            (Kind.FORWARD_TEMPORARY, _TEMPORARIES),
            (Kind.RECOMPUTED, _TEMPORARIES),
            (Kind.BACKWARD_TEMPORARY, _TEMPORARIES),
        ):
            self._fill(kind, bucket)

    def _fill(self, kind: int, bucket: int) -> None:
        bucket_of = self.bucket_of
        for number in self.by_kind[kind]:
            if bucket_of[number] == kind:
                bucket_of[number] = bucket

    def _count_weights(self) -> None:
        requested = self.blocks.requested
        self.weights = Counter(
            requested[number] for number, bucket in enumerate(self.bucket_of) if bucket == _WEIGHTS
        )
        if not self.weights:
            self.weights = Counter(
                requested[number]
                for kind in (Kind.KEPT_FROM_SETUP, Kind.BEFORE)
                for number in self.by_kind[kind]
            )
            for size in _WORKSPACE_BYTES & self.weights.keys():
                # A model has a weight of one size in every layer, a process one workspace for each stream.
                if self.weights[size] <= 2:
                    del self.weights[size]

    def _settle_gradients(self) -> None:
        """What backward leaves behind is gradients, as many of a size as there are weights; or a workspace."""
        blocks, bucket_of = self.blocks, self.bucket_of
        known = {part for size in self.weights for part in (size, 2 * size, size // 2)}
        room: dict[int, Counter[int]] = {}
        # From the end, because a workspace comes with the first product of matrices and gradients after it.
        for number in reversed(self.by_kind[Kind.KEPT_FROM_BACKWARD]):
            size, span = blocks.requested[number], self.span_starts[number]
            left = room.setdefault(span, Counter(self.weights))
            if size in _WORKSPACE_BYTES and left[size] <= 0:
                bucket_of[number] = _WORKSPACE
            elif size in known or self.span_ends[number] != self.never:
                left[size] -= 1
                bucket_of[number] = _GRADIENTS
            elif self._ends_here(span):
                bucket_of[number] = Kind.BACKWARD_TEMPORARY
                self.by_kind[Kind.BACKWARD_TEMPORARY].append(number)
            else:
                bucket_of[number] = _GRADIENTS
        self.by_kind[Kind.BACKWARD_TEMPORARY].sort()

    def _settle_setup(self) -> None:
        """Tensors made by the program itself before the first step: weights, their masters, or inputs."""
        blocks, bucket_of = self.blocks, self.bucket_of
        kept = self.by_kind[Kind.KEPT_FROM_SETUP]
        gradients = {
            blocks.requested[number]
            for number in self.by_kind[Kind.KEPT_FROM_BACKWARD]
            if bucket_of[number] == _GRADIENTS
        }
        built = Counter(
            blocks.requested[number] for number, bucket in enumerate(bucket_of) if bucket == _WEIGHTS
        )
        # A batch is a few tensors; what comes in larger numbers was loaded by code that is not known here.
        many = sum(blocks.requested[number] >= MIB for number in kept) > _MOST_INPUTS
        masters = self._masters(Counter(blocks.requested[number] for number in kept), built)
        for number in kept:
            size = blocks.requested[number]
            if masters[size] > 0:
                masters[size] -= 1
                bucket_of[number] = _MASTER
            elif not built and size in _WORKSPACE_BYTES and gradients and size not in gradients:
                bucket_of[number] = _WORKSPACE
            elif size in gradients or not built or (size >= MIB and many):
                bucket_of[number] = _WEIGHTS
            else:
                bucket_of[number] = _ACTIVATIONS

    @staticmethod
    def _masters(kept: Counter[int], weights: Counter[int]) -> Counter[int]:
        """fp32 copies of 16-bit weights, by size: twice as large as the weights, and one for nearly all of them."""
        doubled = Counter({2 * size: count for size, count in weights.items()})
        found = doubled & kept
        whole = sum(size * count for size, count in doubled.items())
        matched = sum(size * count for size, count in found.items())
        return found if matched >= _NEARLY_ALL * whole > 0 else Counter()

    def _settle_before(self) -> None:
        """Blocks from before the recording with no stack: one of each gradient's size is a weight, two are
        state.

        Without gradients to compare with, all of them count as weights.
        """
        blocks, bucket_of = self.blocks, self.bucket_of
        gradients = [number for number, bucket in enumerate(bucket_of) if bucket == _GRADIENTS]
        trainable: Counter[int] = Counter()
        if gradients:
            # Each backward pass makes one gradient for each trainable weight; take the pass with the most. A
            # recording that began in the middle of one has part of its gradients from before.
            passes: dict[int, Counter[int]] = {}
            for number in gradients:
                passes.setdefault(max(self.span_starts[number], 0), Counter())[blocks.requested[number]] += 1
            trainable = max(passes.values(), key=lambda sizes: sum(sizes.values()))
        taken: Counter[int] = Counter()
        for number in self.by_kind[Kind.BEFORE]:
            size = blocks.requested[number]
            taken[size] += 1
            if size in _WORKSPACE_BYTES and taken[size] > 3 * trainable[size] and trainable:
                bucket_of[number] = _WORKSPACE
            elif trainable[size] and trainable[size] < taken[size] <= 3 * trainable[size]:
                bucket_of[number] = _STATE
            else:
                bucket_of[number] = _WEIGHTS

    def _settle_forward(self) -> None:
        """Casts of weights among what forward allocated, and what outlives its step."""
        blocks, bucket_of = self.blocks, self.bucket_of
        for number in self.by_kind[Kind.KEPT_FROM_FORWARD]:
            bucket_of[number] = _WORKSPACE if blocks.requested[number] in _WORKSPACE_BYTES else _ACTIVATIONS
        for number in self.by_kind[Kind.CUT_OFF]:
            # What even the failing program did not let go of is a library's.
            stays = blocks.end[number] == len(self.trace) and bool(self.failed)
            is_workspace = stays and blocks.requested[number] in _WORKSPACE_BYTES
            bucket_of[number] = _WORKSPACE if is_workspace else Kind.SAVED
            if not is_workspace:
                self.by_kind[Kind.SAVED].append(number)
        if not self.casts:
            return
        marks, stacks, ends = self.facts.marks, self.trace.stack, blocks.end
        for number in self.by_kind[Kind.FORWARD_TEMPORARY]:
            end = ends[number]
            if end < len(stacks) and marks[stacks[end]] & Mark.AUTOCAST_EXIT:
                bucket_of[number] = _CAST
        self._claim_casts(sorted(self.by_kind[Kind.SAVED] + self.by_kind[Kind.FORWARD_TEMPORARY]))

    def _claim_casts(self, numbers: list[int]) -> None:
        """A block of half a weight's size is its cast when its operation goes on to allocate its result.

        Casts of an operation's inputs come before its output, with the same stack.
        """
        blocks, bucket_of, halves = self.blocks, self.bucket_of, self.halves
        open_kinds = (Kind.SAVED, Kind.FORWARD_TEMPORARY, Kind.RECOMPUTED)
        room: dict[int, Counter[int]] = {}
        last = len(blocks) - 1
        for number in numbers:
            size = blocks.requested[number]
            if size not in halves:
                continue
            left = room.setdefault(self.span_starts[number], Counter(halves))
            if bucket_of[number] == _CAST:
                left[size] -= 1
            elif (
                bucket_of[number] in open_kinds
                and left[size] > 0
                and number < last
                and blocks.stack[number + 1] == blocks.stack[number]
                and bucket_of[number + 1] in (*open_kinds, _CAST)
            ):
                left[size] -= 1
                bucket_of[number] = _CAST

    def _settle_recomputed(self) -> None:
        """Of a second forward, what the backward that follows frees was saved for it."""
        blocks, bucket_of = self.blocks, self.bucket_of
        marks, stacks = self.facts.marks, self.trace.stack
        recomputed = self.by_kind[Kind.RECOMPUTED]
        saved: list[int] = []
        for number in recomputed:
            end = blocks.end[number]
            freed_by = marks[stacks[end]] if end < len(stacks) else 0
            if freed_by & Mark.AUTOCAST_EXIT:
                bucket_of[number] = _CAST
            elif not freed_by & Mark.RECOMPUTE:
                saved.append(number)
        if self.casts:
            self._claim_casts(recomputed)
        for number in saved:
            if bucket_of[number] == Kind.RECOMPUTED:
                bucket_of[number] = _ACTIVATIONS

    def _settle_logits(self) -> None:
        """The head's output, found by its size next to the loss, and its gradients at the start of backward."""
        blocks, bucket_of, marks = self.blocks, self.bucket_of, self.facts.marks
        losses: dict[int, list[int]] = {}
        for number, bucket in enumerate(bucket_of):
            if bucket == _LOGITS and marks[blocks.stack[number]] & Mark.LOSS:
                losses.setdefault(self.span_starts[number], []).append(number)
        backward_temporaries = self.by_kind[Kind.BACKWARD_TEMPORARY]
        for span, members in losses.items():
            most = max(blocks.requested[number] for number in members)
            if most < MIB:
                continue
            first = next(number for number in members if _alike(blocks.requested[number], most))
            family = [first]
            for number in range(max(0, first - _BLOCKS_BEFORE_LOSS), first):
                if (
                    self.span_starts[number] == span
                    and bucket_of[number] in (Kind.SAVED, Kind.FORWARD_TEMPORARY, _ACTIVATIONS)
                    and _alike(blocks.requested[number], most)
                ):
                    bucket_of[number] = _LOGITS
                    family.append(number)
            family.extend(number for number in members if _alike(blocks.requested[number], most))
            # Each gradient is made while the one before it is alive; a chain that breaks is over.
            alive_until = max(blocks.end[number] for number in family)
            at = bisect_left(backward_temporaries, members[-1])
            while at < len(backward_temporaries):
                number = backward_temporaries[at]
                if blocks.start[number] > alive_until or self.span_starts[number] > span + 1:
                    break
                if bucket_of[number] == Kind.BACKWARD_TEMPORARY and _alike(blocks.requested[number], most):
                    bucket_of[number] = _LOGITS
                    alive_until = max(alive_until, blocks.end[number])
                at += 1

    def _ends_here(self, span: int) -> bool:
        """Whether the recording, or the program, ended in this span."""
        return span == len(self.spans) - 1


def _alike(size: int, most: int) -> bool:
    """Whether a size is that of the logits, in their own precision or in half of it."""
    return most * _NEAR <= size <= most or most * _NEAR / 2 <= size <= most / 2
