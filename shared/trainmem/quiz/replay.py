"""Two training steps from the tape, for questions whose key has to be what the product answers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from trainmem.buckets import Bucket
from trainmem.estimate import recorded
from trainmem.job import TrainingJob
from trainmem.quiz.timeline import Curve
from trainmem.recording import most_reserved, read_step
from trainmem.timeline import from_recording

__all__ = ["TwoSteps", "two_steps"]


@dataclass(frozen=True, slots=True)
class TwoSteps:
    """Allocated memory over step 1 and a later step, and the most that is reserved in each, in bytes.

    The curve's stretches are named "step 1" and "step 2".
    """

    curve: Curve
    first_peak_bytes: int
    second_peak_bytes: int
    first_reserved_bytes: int
    second_reserved_bytes: int


@lru_cache(maxsize=16)
def two_steps(job: TrainingJob) -> TwoSteps:
    """The first two steps of ``job``, which has to be one that the tape knows."""
    recording, result = recorded(job)
    first = from_recording(job, recording, result, first_step=True).curve
    second = from_recording(job, recording, result).curve
    last = max(mark.step for mark in recording.marks)
    levels: tuple[dict[Bucket, float], ...] = tuple(dict(point.buckets) for point in (*first, *second))
    return TwoSteps(
        curve=Curve(levels, (("step 1", 0, len(first) - 1), ("step 2", len(first), len(levels) - 1))),
        first_peak_bytes=read_step(recording, result, 1).peak_allocated_bytes,
        second_peak_bytes=read_step(recording, result, last).peak_allocated_bytes,
        first_reserved_bytes=most_reserved(recording, result, 1),
        second_reserved_bytes=most_reserved(recording, result, last),
    )
