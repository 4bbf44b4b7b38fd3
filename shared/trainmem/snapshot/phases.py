"""Which phase of which step the program was in at every event."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import le
from typing import Literal

from trainmem.recording import Phase
from trainmem.snapshot.curve import phases_from_curve, split_at_peaks
from trainmem.snapshot.model import Action, Annotation, Trace
from trainmem.snapshot.sites import StackFacts, Vote
from trainmem.snapshot.spans import Span

__all__ = ["Evidence", "Span", "Timetable", "find_phases", "spans_of_events"]

Evidence = Literal["stacks", "annotations", "lifetimes", "none"]

_PHASES: dict[int, Phase] = {
    Vote.SETUP: "setup",
    Vote.FORWARD: "forward",
    Vote.BACKWARD: "backward",
    Vote.OPTIMIZER: "optimizer",
    Vote.ZERO_GRAD: "zero_grad",
}
_DECISIVE = re.compile(b"[\x01-\x05]")
"""Any vote for a phase, `Vote.SETUP` to `Vote.ZERO_GRAD`."""
_RUNS = re.compile(rb"(.)\1*", re.DOTALL)
_ANNOTATED = (
    (re.compile(r"zero_grad", re.IGNORECASE), Vote.ZERO_GRAD),
    (
        re.compile(r"^Optimizer\.step|^(?:the )?optim(?:izer)?(?:[ _.]?step)?$|^step$", re.IGNORECASE),
        Vote.OPTIMIZER,
    ),
    (re.compile(r"^(?:bwd|backward)(?:[ _]?(?:pass|step))?$|^loss\.backward", re.IGNORECASE), Vote.BACKWARD),
    (re.compile(r"^(?:fwd|forward)(?:[ _]?(?:pass|step))?$", re.IGNORECASE), Vote.FORWARD),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Timetable:
    """The spans in order, without gaps, and where they come from."""

    spans: Sequence[Span]
    evidence: Evidence

    @property
    def steps(self) -> int:
        """Steps that were seen, whole or in part."""
        return max((span.step for span in self.spans), default=0)

    def at(self, event: int) -> Span | None:
        """The span of an event; the first one for what came before."""
        if not self.spans:
            return None
        number = bisect_left([span.end for span in self.spans], event + 1)
        return self.spans[min(number, len(self.spans) - 1)]


def find_phases(
    trace: Trace,
    facts: StackFacts,
    annotations: Sequence[Annotation],
    strings: Sequence[str],
    allocated: Sequence[int],
) -> Timetable:
    """Phases from named regions where there are some, from stacks everywhere else, else from the shape of the
    curve.

    ``allocated`` is the curve after 0, 1, 2, ... events.
    """
    votes = _votes(trace, facts)
    _count_metadata(votes, trace, strings)
    _paint(votes, _annotated(trace, annotations))
    seen = set(votes) - {Vote.NONE, Vote.BARE, Vote.SETUP}
    if not seen:
        spans = phases_from_curve(trace, allocated)
        return Timetable(spans=spans, evidence="lifetimes" if spans else "none")
    if not seen & {Vote.FORWARD, Vote.BACKWARD}:
        # PyTorch names the optimizer's regions by itself, so a file without stacks still has those.
        split_at_peaks(votes, allocated)
    spans = _Reader(trace).read(bytes(votes))
    return Timetable(spans=spans, evidence="stacks" if facts.has_python else "annotations")


def spans_of_events(timetable: Timetable, events: int) -> list[int]:
    """The number of the span of every event; one more entry, the number of spans, for what never ended."""
    numbers: list[int] = []
    for number, span in enumerate(timetable.spans):
        numbers.extend([number] * (span.end - span.start))
    numbers.extend([max(len(timetable.spans) - 1, 0)] * (events - len(numbers)))
    numbers.append(len(timetable.spans))
    return numbers


def _votes(trace: Trace, facts: StackFacts) -> bytearray:
    """One vote an event. Where frees were recorded without stacks, only allocations can be bare."""
    votes = bytearray(map(facts.votes.__getitem__, trace.stack))
    frees_have_stacks = any(
        stack >= 0
        for action, stack in zip(trace.action, trace.stack, strict=True)
        if action == Action.FREE_REQUESTED
    )
    if not frees_have_stacks and Vote.BARE in votes:
        for event, action in enumerate(trace.action):
            if votes[event] == Vote.BARE and action != Action.ALLOC:
                votes[event] = Vote.NONE
    return votes


def _vote_of_name(name: str) -> Vote | None:
    return next((vote for pattern, vote in _ANNOTATED if pattern.search(name)), None)


def _count_metadata(votes: bytearray, trace: Trace, strings: Sequence[str]) -> None:
    """A program may say itself what it is doing (``torch.cuda.memory._set_memory_metadata``)."""
    metadata = trace.words.get("user_metadata")
    if metadata is None:
        return
    said = {number: _vote_of_name(strings[number]) for number in set(metadata)}
    for event, number in enumerate(metadata):
        vote = said[number]
        if vote is not None:
            votes[event] = vote


def _annotated(trace: Trace, annotations: Sequence[Annotation]) -> list[tuple[int, int, Vote]]:
    """Ranges of events inside regions whose name is a phase, outer ones first. Needs times in order."""
    times = trace.time_us
    if not annotations or not times or not times[0] or not all(map(le, times, times[1:])):
        return []
    regions: list[tuple[int, int, Vote]] = []
    open_starts: dict[str, list[int]] = {}
    for annotation in annotations:
        vote = _vote_of_name(annotation.name)
        if vote is None or annotation.device != trace.device:
            continue
        starts = open_starts.setdefault(annotation.name, [])
        if annotation.is_start:
            starts.append(annotation.time_us)
        elif starts:
            regions.append((starts.pop(), annotation.time_us, vote))
    regions.sort(key=lambda region: (region[0], -region[1]))
    return [(bisect_left(times, start), bisect_left(times, end + 1), vote) for start, end, vote in regions]


def _paint(votes: bytearray, regions: list[tuple[int, int, Vote]]) -> None:
    """Give every event in a region its vote, that of the region which began last where they overlap.

    One sweep, however many regions lie on top of each other.
    """
    bounds = sorted({bound for start, end, _ in regions for bound in (start, end)})
    open_regions: list[tuple[int, int, Vote]] = []
    upcoming = 0
    for low, high in pairwise(bounds):
        while upcoming < len(regions) and regions[upcoming][0] <= low:
            open_regions.append(regions[upcoming])
            upcoming += 1
        # The regions come in order of their start, so the last one that is still open began last.
        while open_regions and open_regions[-1][1] <= low:
            open_regions.pop()
        if open_regions:
            votes[low:high] = bytes([open_regions[-1][2]]) * (high - low)


class _Reader:
    """Turns runs of votes into spans: a vote lasts until another is heard."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.spans: list[Span] = []
        self.phase: Phase = "setup"
        self.start = 0
        self.step = 0
        self.micro = 0
        self.stepped = False
        """Whether the optimizer has run since the step began."""

        self.settled = 0
        """Where the votes of the current phase end."""

    def read(self, votes: bytes) -> list[Span]:
        has_optimizer = Vote.OPTIMIZER in votes or Vote.ZERO_GRAD in votes
        if _starts_in_backward(votes):
            self.phase, self.step = "backward", 1
        for run in _RUNS.finditer(votes):
            vote = run[1][0]
            if vote == Vote.NONE:
                continue
            if vote == Vote.BARE:
                if self.phase not in ("forward", "backward"):
                    continue
                vote = Vote.BACKWARD
            phase = _PHASES[vote]
            if phase == "setup" and self.step:
                continue
            if phase != self.phase:
                self._turn(phase, run.start(), has_optimizer)
            self.settled = run.end()
        self._close(len(votes))
        return self.spans

    def _turn(self, phase: Phase, at: int, has_optimizer: bool) -> None:
        previous = self.phase
        if phase == "forward" and previous != "setup":
            # Batches are moved to the device, by code that names no phase, before the model is called.
            at = self._first_allocation(self.settled, at)
        self._close(at)
        if self.step == 0 and phase != "setup":
            self.step, self.micro, self.stepped = 1, 0, False
        elif phase == "forward" and (self.stepped or not has_optimizer):
            self.step += 1
            self.micro, self.stepped = 0, False
        elif phase == "forward" and previous == "backward":
            self.micro += 1
        if phase == "optimizer" or (phase == "zero_grad" and previous == "optimizer"):
            self.stepped = True
        self.phase = phase

    def _close(self, at: int) -> None:
        if at > self.start:
            self.spans.append(Span(self.phase, self.step, self.start, at, self.micro))
        self.start = at

    def _first_allocation(self, start: int, end: int) -> int:
        found = self.trace.action[start:end].tobytes().find(Action.ALLOC)
        return end if found < 0 else start + found


def _starts_in_backward(votes: bytes) -> bool:
    """Whether a recording that began in the middle of a step began in backward: no frames until its end."""
    first = _DECISIVE.search(votes)
    return (
        first is not None
        and votes[first.start()] in (Vote.BACKWARD, Vote.OPTIMIZER)
        and Vote.BARE in votes[: first.start()]
    )
