"""What the harness asks of the prediction: a peak for a job, to guard it and to aim the batch search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from trainmem.job import JobError, TrainingJob

__all__ = ["Predictor"]


def _tape_peak(job: TrainingJob) -> int | None:
    from trainmem.estimate import estimate

    return estimate(job, engine="tape").peak_allocated_bytes


@dataclass(kw_only=True, slots=True)
class Predictor:
    """Predicted allocated peaks, remembered; None for a job that the engine does not know."""

    engine: str = "tape"
    ask: Callable[[TrainingJob], int | None] = _tape_peak
    _known: dict[str, int | None] = field(default_factory=dict)

    def peak_bytes(self, job: TrainingJob | None) -> int | None:
        """The predicted peak of one steady step."""
        if job is None:
            return None
        name = repr(job)
        if name not in self._known:
            try:
                self._known[name] = self.ask(job)
            except (JobError, ImportError, NotImplementedError):
                self._known[name] = None
        return self._known[name]
