"""One step on a clock: memory by bucket over forward, backward, optimizer and zero_grad, with its named instants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from trainmem.buckets import BUCKETS, Bucket
from trainmem.instant import describe_instant, short_op
from trainmem.job import TrainingJob
from trainmem.recording import PHASES, Counters, Phase, Recording
from trainmem.units import format_gib

__all__ = ["CurvePoint", "Instant", "Timeline", "from_recording", "notices"]

POINTS = 240
"""Points of the curve: as many as a chart can show, a peak never lost between two."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Instant:
    """A moment worth a name. ``x`` runs from 0 to 1 over the step's events."""

    name: str
    phase: Phase
    sentence: str
    x: float
    buckets: Mapping[Bucket, int]
    total_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CurvePoint:
    """Bytes by bucket at one place of the curve."""

    x: float
    phase: Phase
    buckets: Mapping[Bucket, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """One step: its instants in order, and the curve between them."""

    step: Literal["first", "steady"]
    instants: tuple[Instant, ...]
    curve: tuple[CurvePoint, ...]


def from_recording(
    job: TrainingJob, recording: Recording, result: Counters, *, first_step: bool = False
) -> Timeline:
    """The timeline of the first or of a steady step of a recording."""
    step = 1 if first_step else max(mark.step for mark in recording.marks)
    marks = [mark for mark in recording.marks if mark.step == step]
    begin = marks[0].event
    end = next((mark.event for mark in recording.marks if mark.step == step + 1), len(recording.events))
    allocated = result.allocated
    count = max(end - begin, 1)
    phase_at: dict[int, Phase] = {mark.event: mark.phase for mark in marks}

    peak = max(range(begin, end), key=allocated.__getitem__, default=begin)
    stops = {begin - 1, peak, end - 1} | {mark.event - 1 for mark in marks}
    chosen = _sample(allocated, begin, end) | {event for event in stops if event >= begin - 1}
    totals = [0] * len(BUCKETS)
    levels: dict[int, tuple[int, ...]] = {}
    phases: dict[int, Phase] = {}
    number, phase = 0, marks[0].phase
    blocks, bucket_of = result.block_bytes, recording.bucket_of
    if begin == 0:
        levels[-1], phases[-1] = tuple(totals), phase
    for index, value in enumerate(recording.events[:end]):
        phase = phase_at.get(index, phase)
        if value > 0:
            totals[bucket_of[number]] += blocks[number]
            number += 1
        else:
            totals[bucket_of[~value]] -= blocks[~value]
        if index in chosen:
            levels[index], phases[index] = tuple(totals), phase

    def place(event: int) -> float:
        return min(max((event - begin + 1) / count, 0.0), 1.0)

    def buckets(event: int) -> Mapping[Bucket, int]:
        return MappingProxyType(dict(zip(BUCKETS, levels[event], strict=True)))

    def instant(name: str, event: int, at: Phase, sentence: str) -> Instant:
        return Instant(
            name=name,
            phase=at,
            sentence=sentence,
            x=place(event),
            buckets=buckets(event),
            total_bytes=sum(levels[event]),
        )

    named = _named(job, recording, marks, begin, end, peak)
    curve = tuple(
        CurvePoint(x=place(event), phase=phases[event], buckets=buckets(event)) for event in sorted(levels)
    )
    return Timeline(
        step="first" if first_step else "steady",
        instants=tuple(instant(*entry) for entry in named if entry[1] in levels),
        curve=curve,
    )


def _sample(allocated: list[int], begin: int, end: int) -> set[int]:
    """Events to show: of each stretch of the step its highest and its last."""
    stretch = max(1, (end - begin) // (POINTS // 2 - 8))
    out: set[int] = set()
    for start in range(begin, end, stretch):
        stop = min(start + stretch, end)
        out.add(max(range(start, stop), key=allocated.__getitem__))
        out.add(stop - 1)
    return out


_ENDS: dict[Phase, tuple[str, str]] = {
    "forward": ("end of forward", "Everything that backward needs is saved, and the loss is known."),
    "backward": ("end of backward", "Activations are gone; one gradient a parameter is left."),
    "optimizer": ("end of the optimizer step", "Weights are updated; the optimizer's state stays for good."),
    "zero_grad": ("after zero_grad", "What is left is what every step starts with."),
}


def _named(
    job: TrainingJob, recording: Recording, marks: list[object], begin: int, end: int, peak: int
) -> list[tuple[str, int, Phase, str]]:
    out: list[tuple[str, int, Phase, str]] = [
        ("start", begin - 1, PHASES[1], "Weights, optimizer state and workspaces, before anything runs.")
    ]
    spans: list[tuple[Phase, int, int]] = []
    events = [mark.event for mark in marks] + [end]  # type: ignore[attr-defined]
    for mark, start, stop in zip(marks, events, events[1:], strict=False):
        spans.append((mark.phase, start, stop))  # type: ignore[attr-defined]
    for phase, start, stop in spans:
        name, sentence = _ENDS[phase]
        if start <= peak < stop:
            allocation = sum(1 for value in recording.events[: peak + 1] if value > 0) - 1
            op, module = recording.op_of[allocation], recording.module_of[allocation]
            words = describe_instant(phase, op, module, job.optimizer)
            where = f"{module}: {short_op(op)}" if module else short_op(op)
            out.append(("the peak", peak, phase, f"{words[0].upper()}{words[1:]} ({where})."))
        if stop > start or phase in ("optimizer", "zero_grad"):
            out.append((name, stop - 1, phase, sentence))
    return out


def notices(first: Timeline, steady: Timeline, checkpointed: bool) -> tuple[str, str, str]:
    """The three things to notice on the clock, with this job's numbers."""
    rise = max(i.total_bytes for i in steady.instants) - max(i.total_bytes for i in first.instants)
    top = max(steady.instants, key=lambda i: i.total_bytes)
    start = steady.instants[0]
    state = start.buckets["optimizer_state"]
    shape = (
        "Checkpointing flattens the mountain: forward keeps one tensor a block, and backward rebuilds one block "
        "at a time."
        if checkpointed
        else "Memory climbs block by block in forward and falls block by block in backward: what was saved is "
        "given back as soon as its gradient is known."
    )
    later = (
        f"Step 1 peaks {format_gib(rise)} lower than every later step, because the optimizer's state "
        f"({format_gib(state)}) does not exist yet: a job can survive its first step and die in its second."
        if rise > 0
        else f"Step 1 peaks as high as every later step: the optimizer's state ({format_gib(state)}) is there "
        "before its peak comes."
    )
    return (
        f"The peak is one instant, {top.name if top.name != 'the peak' else top.phase}: "
        f"{format_gib(top.total_bytes)}. No two maxima of different moments may be added up.",
        shape,
        later,
    )
