"""One step on a clock: memory by bucket from forward to zero_grad, with its named instants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from trainmem.buckets import BUCKETS, Bucket
from trainmem.instant import describe_instant, short_op
from trainmem.job import TrainingJob
from trainmem.landmarks import Landmark, Span, landmarks
from trainmem.recording import PHASES, Counters, Mark, Phase, Recording
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
    named = _named(job, recording, allocated, marks, end, peak)
    stops = (
        {begin - 1, peak, end - 1}
        | {mark.event - 1 for mark in marks}
        | {landmark.event for landmark in named}
    )
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

    def instant(landmark: Landmark) -> Instant:
        return Instant(
            name=landmark.name,
            phase=landmark.phase,
            sentence=landmark.sentence,
            x=place(landmark.event),
            buckets=buckets(landmark.event),
            total_bytes=sum(levels[landmark.event]),
        )

    curve = tuple(
        CurvePoint(x=place(event), phase=phases[event], buckets=buckets(event)) for event in sorted(levels)
    )
    return Timeline(
        step="first" if first_step else "steady",
        instants=tuple(instant(landmark) for landmark in named if landmark.event in levels),
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
    job: TrainingJob, recording: Recording, allocated: list[int], marks: list[Mark], end: int, peak: int
) -> list[Landmark]:
    begin = marks[0].event
    ends = [*(mark.event for mark in marks[1:]), end]
    spans = [Span(phase=m.phase, start=m.event, stop=stop) for m, stop in zip(marks, ends, strict=True)]
    out = [
        Landmark(
            name="start",
            event=begin - 1,
            phase=PHASES[1],
            sentence="Weights, optimizer state and workspaces, before anything runs.",
        )
    ]
    for span in spans:
        name, sentence = _ENDS[span.phase]
        if span.start <= peak < span.stop:
            out.append(_summit(job, recording, "the peak", peak, span.phase))
        elif span.phase == "optimizer" and span.stop > span.start:
            top = max(range(span.start, span.stop), key=allocated.__getitem__)
            if allocated[top] > allocated[span.stop - 1]:
                out.append(_summit(job, recording, "the optimizer's highest", top, span.phase))
        if span.stop > span.start or span.phase in ("optimizer", "zero_grad"):
            out.append(Landmark(name=name, event=span.stop - 1, phase=span.phase, sentence=sentence))
    taken = {landmark.event for landmark in out}
    between = landmarks(recording, spans, checkpointed=job.checkpointing != "none")
    out += [landmark for landmark in between if landmark.event not in taken]
    return sorted(out, key=lambda landmark: landmark.event)


def _summit(job: TrainingJob, recording: Recording, name: str, event: int, phase: Phase) -> Landmark:
    allocation = sum(1 for value in recording.events[: event + 1] if value > 0) - 1
    op, module = recording.op_of[allocation], recording.module_of[allocation]
    words = describe_instant(phase, op, module, job.optimizer)
    where = f"{module}: {short_op(op)}" if module else short_op(op)
    sentence = f"{words[0].upper()}{words[1:]} ({where})."
    return Landmark(name=name, event=event, phase=phase, sentence=sentence)


def notices(first: Timeline, steady: Timeline, checkpointed: bool) -> tuple[str, str, str]:
    """The three things to notice on the clock, with this job's numbers."""
    return _one_instant(steady), _crossing(steady, checkpointed), _first_step(first, steady)


def _most(step: Timeline, bucket: Bucket) -> int:
    return max(instant.buckets[bucket] for instant in step.instants)


def _one_instant(steady: Timeline) -> str:
    top = max(steady.instants, key=lambda instant: instant.total_bytes)
    first, second = sorted(BUCKETS, key=lambda bucket: top.buckets[bucket], reverse=True)[:2]
    apart = sum(_most(steady, bucket) for bucket in BUCKETS)
    return (
        f"The peak is one instant, in {top.phase}: {format_gib(top.total_bytes)}, most of it "
        f"{_named_size(first, top)} and {_named_size(second, top)}. "
        f"Adding up what each bucket holds at most, whenever that is, would say {format_gib(apart)}."
    )


def _named_size(bucket: Bucket, instant: Instant) -> str:
    return f"{bucket.replace('_', ' ')} ({format_gib(instant.buckets[bucket])})"


def _crossing(steady: Timeline, checkpointed: bool) -> str:
    saved, gradients = (format_gib(_most(steady, bucket)) for bucket in ("activations", "gradients"))
    both = format_gib(max(i.buckets["activations"] + i.buckets["gradients"] for i in steady.instants))
    if checkpointed:
        return (
            "Checkpointing flattens the mountain: forward keeps little of each block, and backward rebuilds "
            f"a block before it uses it. Activations never hold more than {saved}; "
            "the price is a second forward."
        )
    return (
        f"Activations climb block by block in forward, to {saved}, and fall block by block in backward, "
        f"while gradients grow to {gradients}. The two pass each other: together they hold at most {both}."
    )


def _first_step(first: Timeline, steady: Timeline) -> str:
    peaks = [max(instant.total_bytes for instant in step.instants) for step in (first, steady)]
    state = format_gib(_most(steady, "optimizer_state"))
    if not _most(steady, "optimizer_state"):
        return (
            "The first step is like every other, because this optimizer keeps nothing between steps. "
            "With Adam it would begin lower, and look safer than it is."
        )
    starts = [format_gib(step.instants[0].total_bytes) for step in (first, steady)]
    begins = f"The first step begins at {starts[0]}, every later one at {starts[1]}"
    if peaks[1] > peaks[0]:
        return (
            f"{begins}: the optimizer's state ({state}) does not exist before the first update. Step 1 peaks at "
            f"{format_gib(peaks[0])}, step 2 at {format_gib(peaks[1])}: a job can survive its first step and "
            "die in its second."
        )
    return (
        f"{begins}: the optimizer's state ({state}) comes with the first update, but before that step's peak, "
        "so step 1 tells the truth here."
    )
