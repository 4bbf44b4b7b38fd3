"""Runs a list of trials: each in a fresh process under guard, each with a row, and again where it stopped."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainmem.results.plausible import device_of_gpu
from trainmem_backend.measure.attempt import Attempts
from trainmem_backend.measure.batches import find_largest
from trainmem_backend.measure.beside import Room, grouped, run_beside
from trainmem_backend.measure.crew import Crew
from trainmem_backend.measure.journal import RunFolder
from trainmem_backend.measure.largest import LEAST_TRIALS
from trainmem_backend.measure.nvml import Nvml
from trainmem_backend.measure.predict import Predictor
from trainmem_backend.measure.process import WORKER_COMMAND
from trainmem_backend.measure.progress import Progress
from trainmem_backend.measure.settings import Settings
from trainmem_backend.measure.trial import Trial

__all__ = ["Runner", "Summary"]


@dataclass(kw_only=True, slots=True)
class Summary:
    """How a run went: rows by outcome, and how many trials the deadline left for the next run.

    ``seconds`` is its whole time, of which the first worker's start took ``start_seconds``, overlapping with
    nothing, and ``processes`` of them measured for ``worked_seconds``; where some ran beside each other, that is
    more than passed.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    left: int = 0
    seconds: float = 0.0
    start_seconds: float = 0.0
    worked_seconds: float = 0.0
    processes: int = 0

    @property
    def harness_seconds(self) -> float:
        """What the harness took around each process after that start, where they ran one after the other."""
        return (self.seconds - self.start_seconds - self.worked_seconds) / max(1, self.processes)


class Runner:
    """See the module. ``worker_command`` and ``meminfo`` are replaced by tests."""

    def __init__(
        self,
        folder: RunFolder,
        settings: Settings,
        *,
        predictor: Predictor | None = None,
        progress: Progress | None = None,
        nvml: Nvml | None = None,
        worker_command: Sequence[str] = WORKER_COMMAND,
        meminfo: Path = Path("/proc/meminfo"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._predictor = predictor or Predictor()
        self._progress = progress or Progress(0)
        self._nvml = nvml
        self._worker_command = worker_command
        self._meminfo = meminfo
        self._clock = clock
        self._features: dict[str, str | None] = {}
        self._feature_lock = threading.Lock()
        self._summary = Summary()

    def run(self, trials: Sequence[Trial]) -> Summary:
        """Measure what has no row yet.

        Raises `GateClosed` and `WorkerGone` where it makes no sense to go on; a later run continues from
        there.
        """
        self._summary = Summary()
        for found in self._folder.interrupted():
            row = {**found.row, "outcome": "killed", "reason": found.reason}
            self._folder.add(row)
            self._progress.row(row, None, 0.0)
            self._summary.outcomes["killed"] += 1
        waiting = [trial for trial in trials if not self._folder.done(trial.key)]
        if not waiting:
            return self._summary
        began = self._clock()
        libraries = sorted({name for trial in waiting for name in trial.libraries})
        crew = Crew(
            self._settings,
            total=self._processes(waiting),
            note=self._progress.note,
            nvml=self._nvml,
            worker_command=[*self._worker_command, *(f"--import={name}" for name in libraries)],
            meminfo=self._meminfo,
        )
        attempts = Attempts(crew, self._folder, self._settings, self._predictor, self._progress, self._clock)
        try:
            self._run(waiting, attempts)
        except BaseException:
            attempts.stop()
            raise
        finally:
            crew.close()
        self._summary.seconds = self._clock() - began
        self._summary.worked_seconds, self._summary.processes = attempts.worked_seconds, attempts.count
        return self._summary

    def _processes(self, trials: Sequence[Trial]) -> int:
        """How many workers the trials take at the least: the searches' and the features' own among them."""
        searches = sum(trial.kind == "largest_batch" for trial in trials)
        features: set[str] = set()
        if self._settings.pretend_bytes is None:
            features.update(feature for trial in trials for feature in trial.needs)
        untried = sum(not self._folder.done(_preflight_of(feature).key) for feature in features)
        return len(trials) + (LEAST_TRIALS - 1) * searches + untried

    def _run(self, trials: Sequence[Trial], attempts: Attempts) -> None:
        began = self._clock()
        device = device_of_gpu(attempts.crew.machine().facts.name)
        self._summary.start_seconds = self._clock() - began
        trials = [trial.on(device.name if device is not None else None) for trial in trials]
        seconds = self._settings.deadline_seconds

        def late() -> bool:
            return seconds is not None and self._clock() - began > seconds

        for group in grouped(trials, self._settings.overlap):
            again = group
            if len(group) > 1:
                again, left = run_beside(
                    group,
                    overlap=self._settings.overlap,
                    room=Room(attempts.crew.room_bytes()),
                    predicted_bytes=lambda trial: self._predictor.rough_bytes(trial.job),
                    run=lambda trial, alone: self._rows(trial, attempts, beside=True, keep_oom=alone),
                    late=late,
                )
                self._summary.left += len(left)
            for trial in again:
                if late():
                    self._summary.left += 1
                else:
                    self._rows(trial, attempts)

    def _rows(
        self, trial: Trial, attempts: Attempts, *, beside: bool = False, keep_oom: bool = True
    ) -> list[dict[str, Any]] | None:
        missing = self._missing_feature(trial, attempts)
        if missing is not None:
            rows = [attempts.skip(trial, missing)]
        elif trial.kind == "largest_batch":
            rows = find_largest(trial, attempts)
        else:
            row = attempts.run(trial, beside=beside, keep_oom=keep_oom)
            if row is None:
                return None
            rows = [row]
        self._summary.outcomes.update(row["outcome"] for row in rows)
        self._progress.end()
        return rows

    def _missing_feature(self, trial: Trial, attempts: Attempts) -> str | None:
        """Why the trial cannot run here; each feature is tried once in a run."""
        if self._settings.pretend_bytes is not None:
            return None
        for feature in trial.needs:
            with self._feature_lock:
                if feature not in self._features:
                    self._features[feature] = self._preflight(feature, attempts)
            if self._features[feature] is not None:
                return f"needs {feature}, which failed here: {self._features[feature]}"
        return None

    def _preflight(self, feature: str, attempts: Attempts) -> str | None:
        trial = _preflight_of(feature)
        row = self._folder.row_of(trial.key) or attempts.run(trial, beside=True)
        assert row is not None
        return None if row["outcome"] == "ok" else str(row["reason"])


def _preflight_of(feature: str) -> Trial:
    return Trial(suite="machine", label=feature, kind="preflight", options={"feature": feature})
