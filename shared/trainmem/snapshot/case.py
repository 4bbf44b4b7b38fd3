"""The blocks of a device while they are judged: their lifetimes in spans, their verdicts so far, and what is open."""

from __future__ import annotations

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

__all__ = ["KINDS", "Case", "Index", "Kind"]


class Index:
    """Places in `BUCKETS`: a verdict is one of these, or a `Kind` as long as it is open."""

    WEIGHTS: Final = BUCKETS.index("weights")
    MASTER: Final = BUCKETS.index("master_weights")
    GRADIENTS: Final = BUCKETS.index("gradients")
    STATE: Final = BUCKETS.index("optimizer_state")
    CAST: Final = BUCKETS.index("cast_cache")
    ACTIVATIONS: Final = BUCKETS.index("activations")
    LOGITS: Final = BUCKETS.index("logits")
    COMMUNICATION: Final = BUCKETS.index("communication")
    TEMPORARIES: Final = BUCKETS.index("temporaries")
    WORKSPACE: Final = BUCKETS.index("workspace")


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
class Case:
    """Everything there is to judge by."""

    trace: Trace
    blocks: Blocks
    facts: StackFacts
    spans: Sequence[Span]
    span_starts: Sequence[int]
    span_ends: Sequence[int]
    """The number of spans for a block that was never freed."""

    bucket_of: bytearray
    by_kind: dict[int, list[int]]
    failed: bool
    """Whether memory ran out during the recording."""

    weights: Counter[int] = field(init=False, default_factory=Counter)
    """How many weights there are of each requested size."""

    @property
    def never(self) -> int:
        """The end of a block that was never freed."""
        return len(self.spans)

    def marks_of(self, number: int) -> int:
        """Marks of the stack that allocated a block."""
        return self.facts.marks[self.blocks.stack[number]]

    def marks_of_free(self, number: int) -> int:
        """Marks of the stack that freed a block; none for a block that stayed."""
        end = self.blocks.end[number]
        return self.facts.marks[self.trace.stack[end]] if end < len(self.trace) else 0

    def fill(self, kind: int, bucket: int) -> None:
        """Close what is still open of a kind."""
        bucket_of = self.bucket_of
        for number in self.by_kind[kind]:
            if bucket_of[number] == kind:
                bucket_of[number] = bucket

    def has_mark(self, mark: int) -> bool:
        """Whether any stack of the file bears a mark."""
        return any(marks & mark for marks in self.facts.marks)

    def is_last(self, span: int) -> bool:
        """Whether the recording, or the program, ended in this span."""
        return span == len(self.spans) - 1

    def freed_by_zero_grad(self, number: int) -> bool:
        """Whether ``zero_grad`` freed a block, as far as its stack tells."""
        end = self.blocks.end[number]
        stack = self.trace.stack[end] if end < len(self.trace) else -1
        return stack < 0 or bool(self.facts.marks[stack] & Mark.ZERO_GRAD)
