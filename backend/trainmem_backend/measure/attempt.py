"""One trial under guard, from the refusal that keeps it from starting to the row that says how it ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from trainmem.results import SCHEMA
from trainmem_backend.measure.crew import Crew
from trainmem_backend.measure.guard.cap import refusal
from trainmem_backend.measure.guard.dog import Watchdog
from trainmem_backend.measure.journal import RunFolder
from trainmem_backend.measure.kernellog import count_complaints
from trainmem_backend.measure.nvml import Reading
from trainmem_backend.measure.outcome import of_exit
from trainmem_backend.measure.predict import Predictor
from trainmem_backend.measure.process import WorkerProcess
from trainmem_backend.measure.progress import Progress
from trainmem_backend.measure.settings import Settings
from trainmem_backend.measure.trial import Trial

__all__ = ["Attempts", "Stopped"]


class Stopped(RuntimeError):
    """The run is being stopped; the trial under way gets no row and is tried again by the next run."""


class Attempts:
    """Runs single trials and writes their rows. May be used from several threads."""

    def __init__(
        self,
        crew: Crew,
        folder: RunFolder,
        settings: Settings,
        predictor: Predictor,
        progress: Progress,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.crew = crew
        self.folder = folder
        self.predictor = predictor
        self._settings = settings
        self._progress = progress
        self._clock = clock
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self.count = 0
        self.worked_seconds = 0.0
        """Of all trials so far, from the order to measure until the last figure: the rest is the harness's."""

    def stop(self) -> None:
        """Let no trial that is under way write a row, and end them."""
        self._stopped.set()
        self.crew.kill()

    def run(self, trial: Trial, *, beside: bool = False, keep_oom: bool = True) -> dict[str, Any] | None:
        """The row of one trial, written.

        None for a trial ``beside`` others that ran out of memory where ``keep_oom`` is False: that
        proves nothing. Raises `GateClosed`, `WorkerGone` and `Stopped`.
        """
        predicted = self.predictor.peak_bytes(trial.job)
        forced = trial.forced or self._settings.force
        asked = self._clock()
        if not beside:
            self.crew.pass_gate()
        worker = self.crew.open()
        machine = self.crew.machine()
        cap = self.crew.cap()
        no = refusal(predicted, cap, forced=forced)
        if no is not None:
            self.crew.give_back(worker)
            return self.skip(trial, no)
        began = self._clock()
        waited = began - asked
        self._progress.begin(f"{trial.suite}/{trial.label}", predicted)
        row = self.blank(trial)
        row["environment"] = self.described(machine.environment)
        row["guard"] = {
            "cap_bytes": cap.cap_bytes,
            "cap_reason": cap.reason,
            "predicted_peak_bytes": predicted,
            "forced": forced,
            "beside_others": beside,
            "waited_seconds": round(waited, 2),
        }
        with self._lock:
            self.folder.start(trial.key, row)
        integrated = machine.facts.integrated
        complaints = count_complaints() if integrated else None
        dog = self._watch(worker, row) if integrated else None
        worker.send(do="run", trial=self._as_run(trial, beside).to_json(), cap_bytes=cap.cap_bytes)
        ending = self._listen(worker)
        stopped = dog.stopped_it() if dog is not None else False
        if self._stopped.is_set():
            raise Stopped
        seconds = self._clock() - began
        if stopped:
            with self._lock:
                self.folder.take_note()
                written = self.folder.row_of(trial.key)
            assert written is not None
            self._progress.row(written, predicted, seconds)
            return written
        row.update(ending)
        if complaints is not None:
            row["guard"]["nv_err_no_memory_lines"] = _more_since(complaints)
        if row["outcome"] == "oom" and not keep_oom:
            return None
        return self.write(row, seconds)

    def skip(self, trial: Trial, reason: str) -> dict[str, Any]:
        """The row of a trial that is not run."""
        row = {**self.blank(trial), "outcome": "skipped", "reason": reason}
        row["guard"] = {"predicted_peak_bytes": self.predictor.peak_bytes(trial.job)}
        row["environment"] = self.described()
        return self.write(row)

    def blank(self, trial: Trial) -> dict[str, Any]:
        """A row as far as it is known before anything ran."""
        row: dict[str, Any] = {
            "schema": SCHEMA,
            "trial": trial.key,
            "suite": trial.suite,
            "label": trial.label,
            "kind": trial.kind,
            "outcome": "error",
            "reason": None,
            "job": trial.job.to_json() if trial.job else None,
            "measured": None,
        }
        if trial.options:
            row["options"] = dict(trial.options)
        return row

    def described(self, environment: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The environment of a row: the worker's words, the command, and what the machine stood in for."""
        found = dict(self.crew.machine().environment if environment is None else environment)
        found["commit"] = self._settings.commit
        found["command"] = self._settings.command
        if self._settings.capacity_text is not None:
            found["capacity_text"] = self._settings.capacity_text
            found["capacity_bytes"] = self._settings.capacity_bytes
        return found

    def write(self, row: dict[str, Any], seconds: float = 0.0) -> dict[str, Any]:
        """Append a row and tell about it."""
        guard = row.get("guard") or {}
        with self._lock:
            self.folder.add(row)
            self._progress.row(row, guard.get("predicted_peak_bytes"), seconds)
        return row

    def _listen(self, worker: WorkerProcess) -> dict[str, Any]:
        """What the worker measured and how it ended, whatever way that was."""
        ending: dict[str, Any] | None = None
        part: dict[str, Any] | None = None
        began = self._clock()
        deadline = began + self._settings.trial_seconds
        while ending is None:
            try:
                message = worker.receive(max(0.0, deadline - self._clock()))
            except TimeoutError:
                worker.kill()
                said = f"no result in {self._settings.trial_seconds:.0f} s; stopped by the harness"
                ending = {"outcome": "killed", "reason": said}
                break
            if message is None:
                break
            if message["event"] == "part":
                part = message["measured"]
            elif message["event"] == "timing":
                self.crew.quiet()
            elif message["event"] == "done":
                ending = {name: value for name, value in message.items() if name != "event"}
        with self._lock:
            self.count += 1
            self.worked_seconds += self._clock() - began
        self.crew.resume()
        code, words = self.crew.dismiss(worker)
        if ending is None:
            found = of_exit(code, words)
            ending = {"outcome": found.outcome, "reason": found.reason}
        if ending["outcome"] != "ok" and part is not None:
            ending["measured"] = part
        return ending

    def _watch(self, worker: WorkerProcess, row: dict[str, Any]) -> Watchdog:
        return Watchdog(
            pid=worker.pid,
            floor_bytes=self._settings.floor_bytes,
            interval_seconds=self._settings.interval_seconds,
            rows=self.folder.rows_path,
            row=row,
            meminfo=self.crew.meminfo,
        )

    def _as_run(self, trial: Trial, beside: bool) -> Trial:
        """The trial without its timing pass where times would mean nothing."""
        why = None
        if self._settings.capacity_text is not None:
            why = (
                f"memory figures only: held to {self._settings.capacity_text} to stand in for another machine"
            )
        elif beside and "timing" in trial.passes:
            why = "ran beside other trials"
        return trial if why is None else trial.untimed(why)


def _more_since(before: Reading) -> dict[str, Any]:
    """Lines the kernel log gained, as information: good runs gain some too."""
    after = count_complaints()
    if before.value is None or after.value is None:
        return {"value": None, "null_because": before.reason or after.reason}
    return {"value": max(0, after.value - before.value)}
