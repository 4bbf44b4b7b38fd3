"""The tape holds against the trace on random small jobs over every family and lever.

Both replay the same steps by different means: the tape by its own rules, the trace through the real model and
autograd. By default a few jobs that cover the levers between them; TRAINMEM_RANDOM_JOBS=400 holds the first 400
against each other.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import pytest
from random_jobs import covering_numbers, draw_job

from trainmem.buckets import BUCKETS
from trainmem.job import TrainingJob
from trainmem.model import resolve
from trainmem.recording import Recording, StepFigures, counters, read_step
from trainmem.tape import record

pytestmark = pytest.mark.torch

_ASKED = int(os.environ.get("TRAINMEM_RANDOM_JOBS", "0"))
NUMBERS = list(range(_ASKED)) if _ASKED else covering_numbers(28)
ALLOCATED, BUCKET, RESERVED = 0.001, 0.005, 0.01
"""How far apart the two may be: of the figure itself, but buckets of the peak that they fill."""

SEGMENT_BYTES = 2 << 20
"""Reserved memory comes in whole segments: of a small job one is more than 1%."""

STEPS = (1, 2)
"""The first step, in which states appear, and a steady one."""


@dataclass(frozen=True)
class Replayed:
    recording: Recording
    figures: dict[int, StepFigures]


def replayed(recording: Recording) -> Replayed:
    result = counters(recording)
    return Replayed(recording, {step: read_step(recording, result, step) for step in STEPS})


def differences(tape: StepFigures, trace: StepFigures) -> list[str]:
    """Every figure that is further apart than it may be, in words."""
    peak, reserved = trace.peak_allocated_bytes, trace.peak_reserved_bytes
    assert tape.peak_reserved_bytes
    assert reserved
    bars = [(name, tape.phases[name], value, ALLOCATED * value) for name, value in trace.phases.items()]
    bars.append(("peak allocated", tape.peak_allocated_bytes, peak, ALLOCATED * peak))
    bar = max(RESERVED * reserved, SEGMENT_BYTES)
    bars.append(("peak reserved", tape.peak_reserved_bytes, reserved, bar))
    bars += [
        (bucket, tape.buckets_at_peak[bucket], trace.buckets_at_peak[bucket], BUCKET * peak)
        for bucket in BUCKETS
    ]
    return [
        f"{name}: tape {mine:,}, trace {other:,} ({mine - other:+,})"
        for name, mine, other, bar in bars
        if abs(mine - other) > bar
    ]


def described(job: TrainingJob) -> dict[str, Any]:
    """The job without what is at its default."""
    plain = TrainingJob(model="gpt2").to_json()
    return {name: value for name, value in job.to_json().items() if value != plain[name]}


@pytest.mark.parametrize("number", NUMBERS)
def test_tape_holds_against_the_trace(number: int) -> None:
    from trainmem_backend.trace import trace

    job = draw_job(number)
    tape = replayed(record(job, resolve(job).architecture))
    traced = replayed(trace(job, steps=STEPS[-1]))
    assert tape.recording.parameters == traced.recording.parameters
    assert tape.recording.trainable_parameters == traced.recording.trainable_parameters
    for step in STEPS:
        found = differences(tape.figures[step], traced.figures[step])
        assert not found, f"job {number}, step {step}: {described(job)}: " + "; ".join(found)
