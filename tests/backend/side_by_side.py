"""The tape's recording of a job beside the trace's: how far apart their figures are, and their events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers_releases import as_it_runs, differences

from trainmem.buckets import BUCKETS
from trainmem.job import TrainingJob
from trainmem.model import resolve
from trainmem.recording import Recording, StepFigures, counters, read_step
from trainmem.tape import record

__all__ = ["described", "found_apart"]

ALLOCATED, BUCKET, RESERVED = 0.001, 0.005, 0.01
"""How far apart the two may be: of the figure itself, but buckets of the peak that they fill."""

ELSEWHERE_BYTES = 2 << 20
"""More than that where a newer transformers allocates otherwise: of one large block, and of one small segment, the
rest that is not split off lies in another place. A small job's peak may also be at another of two equal instants.
"""

STEPS = (1, 2)
"""The first step, in which states appear, and a steady one."""


@dataclass(frozen=True)
class _Replayed:
    recording: Recording
    figures: dict[int, StepFigures]


def _replayed(recording: Recording) -> _Replayed:
    result = counters(recording)
    return _Replayed(recording, {step: read_step(recording, result, step) for step in STEPS})


def found_apart(job: TrainingJob) -> list[str]:
    """All that is further apart than it may be, in words; `Unsupported` from the tape is raised.

    Figures alone are compared where the installed transformers is known to allocate otherwise than the tape's.
    """
    from trainmem_backend.trace import trace

    known = differences(job)
    tape = _replayed(record(as_it_runs(job), resolve(job).architecture))
    traced = _replayed(trace(job, steps=STEPS[-1]))
    assert tape.recording.parameters == traced.recording.parameters
    assert tape.recording.trainable_parameters == traced.recording.trainable_parameters
    found = [
        f"step {step}, {text}"
        for step in STEPS
        for text in _figures_apart(tape.figures[step], traced.figures[step], bool(known))
    ]
    # of a fused loss the tape shows one of its equal chunks in the middle
    if known or job.loss == "liger_fused":
        return found
    return found + _events_apart(tape.recording, traced.recording)


def _figures_apart(tape: StepFigures, trace: StepFigures, elsewhere: bool) -> list[str]:
    peak, reserved = trace.peak_allocated_bytes, trace.peak_reserved_bytes
    assert tape.peak_reserved_bytes
    assert reserved
    more = ELSEWHERE_BYTES if elsewhere else 0
    bars = [
        (name, tape.phases[name], value, ALLOCATED * value + more) for name, value in trace.phases.items()
    ]
    bars.append(("peak allocated", tape.peak_allocated_bytes, peak, ALLOCATED * peak + more))
    bars.append(("peak reserved", tape.peak_reserved_bytes, reserved, RESERVED * reserved + more))
    if not elsewhere:
        bars += [
            (bucket, tape.buckets_at_peak[bucket], trace.buckets_at_peak[bucket], BUCKET * peak)
            for bucket in BUCKETS
        ]
    return [
        f"{name}: tape {mine:,}, trace {other:,} ({mine - other:+,})"
        for name, mine, other, bar in bars
        if abs(mine - other) > bar
    ]


def _events_apart(tape: Recording, trace: Recording) -> list[str]:
    """The first event in which the steps differ.

    Frees between two allocations are compared as a set of sizes: their order does not matter to the allocator,
    and where transformers loops over a set of names it changes from process to process.
    """
    mine, other = _events(tape), _events(trace)
    if mine == other:
        return []
    length = min(len(mine), len(other))
    first = next((n for n in range(length) if mine[n] != other[n]), length)
    around = slice(max(0, first - 2), first + 3)
    return [f"event {first} of the steps: tape {mine[around]}, trace {other[around]}"]


def _events(recording: Recording) -> list[tuple[int, str]]:
    """(bytes, phase) of every event of the compared steps; bytes are negative where they are freed."""
    sizes = [event for event in recording.events if event > 0]
    ends = [mark.event for mark in recording.marks[1:]] + [len(recording.events)]
    out: list[tuple[int, str]] = []
    for mark, end in zip(recording.marks, ends, strict=True):
        if mark.step not in STEPS:
            continue
        freed: list[tuple[int, str]] = []
        for event in recording.events[mark.event : end]:
            if event < 0:
                freed.append((-sizes[~event], mark.phase))
                continue
            out += sorted(freed)
            freed.clear()
            out.append((event, mark.phase))
        out += sorted(freed)
    return out


def described(job: TrainingJob) -> dict[str, Any]:
    """The job without what is at its default."""
    plain = TrainingJob(model="gpt2").to_json()
    return {name: value for name, value in job.to_json().items() if value != plain[name]}
