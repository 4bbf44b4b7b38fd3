"""What ``trainmem measure`` and ``trainmem verify`` do."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trainmem
from trainmem.extras import install_line, is_installed
from trainmem.job import TrainingJob
from trainmem.results import MeasuredRow, read_row
from trainmem.units import format_gib
from trainmem_backend.measure.bench import WorkerGone
from trainmem_backend.measure.crew import GateClosed
from trainmem_backend.measure.guard.cap import DEFAULT_FLOOR_BYTES
from trainmem_backend.measure.journal import RunFolder
from trainmem_backend.measure.predict import Predictor
from trainmem_backend.measure.progress import Progress
from trainmem_backend.measure.runner import Runner, Summary
from trainmem_backend.measure.settings import Settings
from trainmem_backend.measure.suites import SUITES, sharded, trials_of
from trainmem_backend.measure.trial import Trial

__all__ = ["Request", "commit_of", "measure", "verify"]

_BROKEN = ("error", "killed")
_STOPPED = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """The command line, read."""

    suites: tuple[str, ...] = ()
    job: Any = None
    folder: Path | None = None
    only: str | None = None
    listing: bool = False
    capacity_bytes: int | None = None
    capacity_text: str | None = None
    floor_bytes: int | None = None
    force: bool = False
    overlap: int = 1
    times: bool = True
    deadline_seconds: float | None = None
    gpus: int = 1
    allocator_settings: str = ""
    pretend_bytes: int | None = None
    command: str = ""


def commit_of() -> str:
    """The checkout's commit, with ``+changes`` where files differ from it; else the version.

    ``TRAINMEM_COMMIT`` says it where the code was copied without its history.
    """
    told = os.environ.get("TRAINMEM_COMMIT")
    if told:
        return told
    version = f"trainmem {trainmem.__version__}"
    folder = Path(trainmem.__file__).parent
    try:
        ask = [
            "git",
            "-C",
            str(folder),
            "describe",
            "--always",
            "--abbrev=12",
            "--exclude=*",
            "--dirty=+changes",
        ]
        found = subprocess.run(ask, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return version
    return found.stdout.strip() if found.returncode == 0 and found.stdout.strip() else version


def measure(request: Request) -> int:
    """Run the trials asked for; 0 when all have ended in their own way, 1 where one broke, 3 where the
    run stopped."""
    if not is_installed("torch"):
        raise ValueError(f"it {install_line('torch')}")
    if request.overlap < 1:
        raise ValueError(f"overlap: {request.overlap} is not 1 or more")
    trials = _trials(request)
    if request.listing:
        _list(trials)
        return 0
    name = "-".join(request.suites) if request.suites else "job"
    folder = request.folder or Path("runs") / name
    settings = Settings(
        floor_bytes=DEFAULT_FLOOR_BYTES if request.floor_bytes is None else request.floor_bytes,
        capacity_bytes=request.capacity_bytes,
        capacity_text=request.capacity_text,
        force=request.force,
        overlap=request.overlap,
        deadline_seconds=request.deadline_seconds,
        allocator_settings=request.allocator_settings,
        command=request.command,
        commit=commit_of(),
        pretend_bytes=request.pretend_bytes,
    )
    summary, stopped = _run(RunFolder(folder), settings, trials)
    _say(f"rows: {folder / 'rows.jsonl'}")
    if stopped is not None:
        _say(f"stopped: {stopped}")
        return _STOPPED
    _say(
        ", ".join(f"{count} {outcome}" for outcome, count in summary.outcomes.items()) or "nothing left to do"
    )
    if summary.processes and request.overlap == 1:
        _say(
            f"{summary.seconds:.0f} s for {summary.processes} processes: the first was ready after "
            f"{summary.start_seconds:.0f} s, then {summary.harness_seconds:.1f} s each around what they measured"
        )
    if summary.left:
        _say(f"{summary.left} trials left; the same command goes on with them")
    return 1 if any(summary.outcomes[outcome] for outcome in _BROKEN) else 0


def _run(folder: RunFolder, settings: Settings, trials: list[Trial]) -> tuple[Summary, str | None]:
    waiting = sum(not folder.done(trial.key) for trial in trials)
    progress = Progress(waiting)
    try:
        return Runner(folder, settings, progress=progress).run(trials), None
    except (GateClosed, WorkerGone) as error:
        return Summary(), str(error)
    except KeyboardInterrupt:
        return Summary(), "interrupted; the same command goes on from here"
    finally:
        progress.close()


def _trials(request: Request) -> list[Trial]:
    if request.job is not None:
        job = TrainingJob.from_json(request.job)
        label = job.model or str((job.config or {}).get("model_type", "config"))
        return [Trial(suite="job", label=label, job=job, passes=("memory", "hooks", "timing"))]
    if not request.suites:
        raise ValueError(f"suite: missing; name one of all, {', '.join(SUITES)}, or give --job")
    trials = trials_of(list(request.suites))
    if request.gpus > 1 and {"sharded", "all"} & set(request.suites):
        trials += sharded.real_trials(request.gpus)
    if not request.times:
        trials = [trial.untimed("not asked for: --no-times") for trial in trials]
    if request.only is not None:
        trials = [trial for trial in trials if request.only in trial.label]
        if not trials:
            raise ValueError(f"only: no label contains {request.only!r}")
    return trials


def _list(trials: list[Trial]) -> None:
    predictor = Predictor()
    for trial in trials:
        peak = predictor.peak_bytes(trial.job) if trial.kind == "step" else None
        predicted = f"predicted {format_gib(peak)}" if peak is not None else trial.kind.replace("_", " ")
        print(f"{trial.suite:<9} {trial.label:<48} {predicted}")  # noqa: T201


def verify(
    *, tolerance: float, folder: Path | None = None, pretend_bytes: int | None = None, command: str = ""
) -> int:
    """Measure the verify suite and print predicted beside measured; 0 where every prediction held.

    A job that this GPU is too small for does not count against the prediction, but one at least must be
    measured.
    """
    with tempfile.TemporaryDirectory() as temporary:
        run = RunFolder(folder or Path(temporary))
        settings = Settings(command=command, commit=commit_of(), pretend_bytes=pretend_bytes)
        trials = SUITES["verify"]()
        _, stopped = _run(run, settings, trials)
        keys = {trial.key for trial in trials}
        rows = [read_row(row) for row in run.rows() if row.get("trial") in keys]
    if stopped is not None:
        _say(f"stopped: {stopped}")
        return _STOPPED
    return _judge(rows, tolerance)


def _judge(rows: list[MeasuredRow], tolerance: float) -> int:
    predictor = Predictor()
    held = missed = 0
    print(f"{'job':<28} {'predicted':>12} {'measured':>12} {'error':>8}")  # noqa: T201
    for row in rows:
        predicted, measured = predictor.peak_bytes(row.job), row.peak_allocated_bytes
        if row.outcome != "ok" or measured is None:
            missed += row.outcome in _BROKEN
            print(f"{row.label:<28} {row.outcome}: {row.reason}")  # noqa: T201
            continue
        if predicted is None:
            missed += 1
            print(f"{row.label:<28} {'no answer':>12} {format_gib(measured, digits=4):>12}")  # noqa: T201
            continue
        error = predicted / measured - 1
        good = abs(error) <= tolerance
        held += good
        missed += not good
        print(  # noqa: T201
            f"{row.label:<28} {format_gib(predicted, digits=4):>12} {format_gib(measured, digits=4):>12} "
            f"{error:>+8.2%}{'' if good else '  off by more than ' + format(tolerance, '.1%')}"
        )
    verdict = "the prediction holds here" if held and not missed else "the prediction does not hold here"
    print(f"{held} of {held + missed} within {tolerance:.1%}: {verdict}")  # noqa: T201
    return 0 if held and not missed else 1


def _say(text: str) -> None:
    print(text, file=sys.stderr)  # noqa: T201
