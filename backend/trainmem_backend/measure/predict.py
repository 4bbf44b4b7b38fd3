"""What the harness asks of the prediction: a peak to guard a job with, and whether a batch would fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from trainmem.estimate import estimate
from trainmem.job import TrainingJob
from trainmem.model import resolve
from trainmem.recording import Recording, counters
from trainmem.tape import record

__all__ = ["Predictor"]


def _peak(job: TrainingJob) -> tuple[int | None, bool]:
    try:
        answer = estimate(job)
    except Exception:
        # A prediction that breaks must not keep the truth from being measured.
        return None, False
    return answer.peak_allocated_bytes, answer.engine == "tape"


@lru_cache(maxsize=16)
def _recording(text: str, job: TrainingJob) -> Recording:
    return record(job, resolve(job).architecture)


def _fits(job: TrainingJob, capacity_bytes: int) -> bool | None:
    try:
        recording = _recording(repr(job), job)
    except Exception:
        return None
    return counters(recording, capacity_bytes=capacity_bytes).oom is None


@dataclass(kw_only=True, slots=True)
class Predictor:
    """The tape's answers, remembered. ``ask`` and ``ask_fits`` are replaced by tests.

    ``ask`` answers a peak and whether the engine itself gave it: where the tape does not know a family
    or a lever the whiteboard's sum takes its place, which is good enough to seat trials beside each
    other and too rough to refuse one.
    """

    ask: Callable[[TrainingJob], tuple[int | None, bool]] = _peak
    ask_fits: Callable[[TrainingJob, int], bool | None] = _fits
    _known: dict[str, tuple[int | None, bool]] = field(default_factory=dict)

    def _answer(self, job: TrainingJob | None) -> tuple[int | None, bool]:
        if job is None:
            return None, False
        name = repr(job)
        if name not in self._known:
            self._known[name] = self.ask(job)
        return self._known[name]

    def peak_bytes(self, job: TrainingJob | None) -> int | None:
        """The predicted allocated peak of a steady step; None for what the tape does not know."""
        peak, sure = self._answer(job)
        return peak if sure else None

    def rough_bytes(self, job: TrainingJob | None) -> int | None:
        """The same, or the whiteboard's sum."""
        return self._answer(job)[0]

    def fits(self, job: TrainingJob, capacity_bytes: int) -> bool | None:
        """Whether the allocator gets through the steps with so many bytes to reserve; None when unknown.

        More than the peak against the capacity: free memory in pieces too small is no memory.
        """
        return self.ask_fits(job, capacity_bytes)
