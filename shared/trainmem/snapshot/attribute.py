"""What each block holds: one of the ten buckets, from its stack, its phase and its lifetime.

In short: what construction leaves behind is weights, what the optimizer leaves behind is its state, what
forward allocates and backward frees was saved (activations, casts of weights, logits), what backward leaves
behind is gradients, and what is gone before its own phase ends was temporary. Stacks overrule where they say
more: a loss function, an optimizer's state, a collective, a cuBLAS workspace. `trainmem.snapshot.sizes` then
tells casts, logits, master weights and workspaces apart by their sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress

from trainmem.buckets import BUCKETS
from trainmem.snapshot.case import KINDS, Case, Index, Kind
from trainmem.snapshot.frames import Mark
from trainmem.snapshot.model import Trace
from trainmem.snapshot.phases import Timetable, spans_of_events
from trainmem.snapshot.replay import BEFORE, Replay
from trainmem.snapshot.sites import StackFacts
from trainmem.snapshot.sizes import settle

__all__ = ["Attribution", "attribute"]


_CATEGORIES: dict[str, int] = {bucket: number for number, bucket in enumerate(BUCKETS)} | {
    "parameter": Index.WEIGHTS,
    "gradient": Index.GRADIENTS,
    "activation": Index.ACTIVATIONS,
    "input": Index.ACTIVATIONS,
    "temporary": Index.TEMPORARIES,
}
"""Categories of ``torch.profiler``, and the buckets' own names, which a predicted snapshot carries."""


@dataclass(slots=True)
class Attribution:
    """The bucket of every block, as an index into `BUCKETS`, and the span in which it began and ended."""

    bucket_of: bytearray
    span_of_start: Sequence[int]
    span_of_end: Sequence[int]
    """The number of spans for a block that was never freed, or only freed because the program had failed."""


def attribute(
    trace: Trace, replay: Replay, facts: StackFacts, timetable: Timetable, strings: Sequence[str]
) -> Attribution:
    """The bucket of every block of a device."""
    attribution = _Attributor(trace, replay, facts, timetable).run()
    categories = trace.words.get("category")
    if categories is not None:
        _take_categories(attribution, replay, categories, strings)
    return attribution


def _take_categories(
    attribution: Attribution, replay: Replay, categories: Sequence[int], strings: Sequence[str]
) -> None:
    """What the file itself says a block holds, where it says more than "unknown"."""
    known = {number: _CATEGORIES.get(strings[number].lower()) for number in set(categories)}
    for block, start in enumerate(replay.blocks.start):
        bucket = known[categories[start]] if start != BEFORE else None
        if bucket is not None:
            attribution.bucket_of[block] = bucket


def _positions(values: bytearray, wanted: int) -> list[int]:
    is_wanted = bytes(value == wanted for value in range(256))
    return list(compress(range(len(values)), values.translate(is_wanted))) if wanted in values else []


@dataclass(slots=True)
class _Attributor:
    trace: Trace
    replay: Replay
    facts: StackFacts
    timetable: Timetable
    never: int = field(init=False)
    span_starts: list[int] = field(init=False)
    span_ends: list[int] = field(init=False)

    def __post_init__(self) -> None:
        spans = spans_of_events(self.timetable, self.replay.events)
        self.never = len(self.timetable.spans)
        blocks = self.replay.blocks
        self.span_starts = [spans[start] if start >= 0 else BEFORE for start in blocks.start]
        self.span_ends = [spans[end] for end in blocks.end]
        for failure in self.replay.out_of_memory:
            self._forget_unwinding(failure, spans[failure])

    def _forget_unwinding(self, failure: int, span: int) -> None:
        """After an out-of-memory error everything is let go, which says nothing about what it was for."""
        blocks = self.replay.blocks
        ends = self.span_ends
        for number, (start, end) in enumerate(zip(blocks.start, blocks.end, strict=True)):
            if start <= failure < end and ends[number] >= span:
                ends[number] = self.never

    def run(self) -> Attribution:
        """Judge every combination of stack, start and end once, then the blocks by their sizes."""
        blocks = self.replay.blocks
        keys = list(zip(blocks.stack, self.span_starts, self.span_ends, strict=True))
        judged = {key: self._judge(*key) for key in set(keys)}
        bucket_of = bytearray(map(judged.__getitem__, keys))
        case = Case(
            trace=self.trace,
            blocks=blocks,
            facts=self.facts,
            spans=self.timetable.spans,
            span_starts=self.span_starts,
            span_ends=self.span_ends,
            bucket_of=bucket_of,
            by_kind={},
            failed=bool(self.replay.out_of_memory),
        )
        # Only blocks from before the recording are gradients by where they were freed, and those come first.
        for number in range(blocks.start.count(BEFORE)):
            if bucket_of[number] == Index.GRADIENTS and not case.freed_by_zero_grad(number):
                # The program may have let go of its model and all at the end of the recording.
                bucket_of[number] = Kind.BEFORE
        case.by_kind = {kind: _positions(bucket_of, kind) for kind in KINDS}
        settle(case)
        return Attribution(bucket_of=bucket_of, span_of_start=self.span_starts, span_of_end=self.span_ends)

    def _judge(self, stack: int, start: int, end: int) -> int:
        marks, leading = self.facts.marks[stack], self.facts.leading[stack]
        if leading & Mark.WORKSPACE:
            return Index.WORKSPACE
        if start == BEFORE:
            return self._judge_before(stack, end)
        if not self.timetable.spans:
            return (
                Index.COMMUNICATION if leading & Mark.COLLECTIVE else self._judge_without_phases(marks, end)
            )
        phase = self.timetable.spans[start].phase
        if leading & Mark.COLLECTIVE and not leading & Mark.MODULE_BUILD:
            # What a reduction leaves behind in backward is a gradient, the rank's own share of it.
            return Kind.KEPT_FROM_BACKWARD if phase == "backward" and end > start else Index.COMMUNICATION
        if phase == "setup":
            return self._judge_setup(marks, end)
        if phase == "forward":
            return self._judge_forward(marks, start, end)
        if phase == "backward":
            return self._judge_backward(marks, start, end)
        if marks & Mark.STATE or (end > start and end < self.never):
            return Index.MASTER if marks & Mark.MASTER else Index.STATE
        if end == self.never and not self._failed_in(start):
            return Index.STATE
        return Index.TEMPORARIES

    def _judge_before(self, stack: int, end: int) -> int:
        """Blocks from before the recording: by the stack that the segments kept, or by where they were freed."""
        marks = self.facts.marks[stack]
        if marks & Mark.STATE:
            return Index.MASTER if marks & Mark.MASTER else Index.STATE
        if end != self.never and self.timetable.spans:
            phase = self.timetable.spans[end].phase
            if phase == "backward":
                return Kind.SAVED_BEFORE
            if phase == "zero_grad":
                return Index.GRADIENTS
            if phase == "optimizer":
                return Index.TEMPORARIES
        if stack < 0:
            return Kind.BEFORE
        if marks & Mark.MODULE_BUILD:
            return Index.WEIGHTS
        if marks & Mark.OPTIMIZER:
            return Index.STATE
        if marks & (Mark.MODULE_CALL | Mark.LOSS):
            return Kind.KEPT_FROM_FORWARD
        return Kind.BEFORE

    def _judge_without_phases(self, marks: int, end: int) -> int:
        if marks & Mark.STATE:
            return Index.STATE
        if marks & Mark.LOSS:
            return Index.LOGITS
        if marks & Mark.MODULE_BUILD and not marks & Mark.MODULE_CALL:
            return Index.WEIGHTS
        if marks & Mark.MODULE_CALL:
            return Index.ACTIVATIONS
        return Index.WEIGHTS if end == self.never and not self.replay.out_of_memory else Index.TEMPORARIES

    def _judge_setup(self, marks: int, end: int) -> int:
        if marks & Mark.STATE:
            return Index.MASTER if marks & Mark.MASTER else Index.STATE
        if end < self.never and self.timetable.spans[end].phase == "setup":
            return Index.TEMPORARIES
        return Index.WEIGHTS if marks & Mark.MODULE_BUILD else Kind.KEPT_FROM_SETUP

    def _judge_forward(self, marks: int, start: int, end: int) -> int:
        if marks & Mark.LOSS:
            return Index.LOGITS
        if end == start:
            return Kind.FORWARD_TEMPORARY
        spans = self.timetable.spans
        if start == 0 and not marks and (end == self.never or spans[end].step > spans[start].step):
            # Without stacks nothing tells the model's construction from the first forward.
            return Kind.KEPT_FROM_SETUP
        if end == self.never:
            return Kind.CUT_OFF if start == len(spans) - 1 else Kind.KEPT_FROM_FORWARD
        same_step = spans[end].step == spans[start].step or end - start <= 2
        return Kind.SAVED if same_step else Kind.KEPT_FROM_FORWARD

    def _judge_backward(self, marks: int, start: int, end: int) -> int:
        recomputes = marks & Mark.RECOMPUTE
        if marks & Mark.LOSS and not recomputes:
            return Index.LOGITS
        if end == start:
            return Kind.RECOMPUTED if recomputes else Kind.BACKWARD_TEMPORARY
        if recomputes:
            return Kind.SAVED if end == self.never else Kind.KEPT_FROM_FORWARD
        return Kind.KEPT_FROM_BACKWARD

    def _failed_in(self, span: int) -> bool:
        """Whether the recording ended, or memory ran out, in this span."""
        spans = self.timetable.spans
        return span == len(spans) - 1 and any(
            spans[span].start <= event < spans[span].end for event in self.replay.out_of_memory
        )
