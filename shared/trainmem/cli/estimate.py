"""`trainmem estimate`: the peak of a step, what fills it, and the verdict."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainmem.allocator import AllocatorSettings
from trainmem.buckets import BUCKETS
from trainmem.capacity import CapacityReport, capacity_report, sum_answer
from trainmem.cli.bar import progress_bar
from trainmem.cli.files import write_file
from trainmem.cli.jobs import (
    add_job_arguments,
    flags_of,
    given_flags,
    job_from_arguments,
    jobs_from_file,
    with_the_file,
)
from trainmem.device import device, devices
from trainmem.estimate import Estimate, NotReplayed, error_sentence, estimate, from_trace, recording_of
from trainmem.job import JobError, TrainingJob
from trainmem.recording import Recording
from trainmem.units import GIB, format_gib, parse_bytes
from trainmem.verdict import needed_bytes, verdict

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = subparsers.add_parser("estimate", description=__doc__)
    parser.epilog = (
        "exit status: 0 answered, and with --capacity it fits; 1 it does not fit --capacity, or a line of --jobs has "
        "no answer; 2 wrong input"
    )
    add_job_arguments(parser)
    parser.add_argument("--engine", choices=("whiteboard", "tape", "trace"), default="tape")
    parser.add_argument(
        "--detail",
        choices=("fast", "exact"),
        default="exact",
        help="fast leaves the allocator out: no reserved memory, up to 1 MiB a block too low",
    )
    parser.add_argument(
        "--allocator", metavar="CONF", help="a PYTORCH_ALLOC_CONF string, e.g. expandable_segments:True"
    )
    parser.add_argument(
        "--capacity", metavar="SIZE", help="answer as a device of this size would, e.g. 24GiB"
    )
    parser.add_argument(
        "--snapshot",
        metavar="FILE",
        help="save the predicted steps as a snapshot for PyTorch's memory_viz or `trainmem snapshot`",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object (schema trainmem.estimate/1)")
    parser.add_argument("--jobs", metavar="FILE", help="one job a line; one answer a line")


def run(args: argparse.Namespace) -> int:
    """Answer one job or a file of them."""
    settings = AllocatorSettings.parse(args.allocator) if args.allocator else None
    if args.jobs:
        _refuse_beside_jobs(args)
        return _many(args, settings)
    job = job_from_arguments(args)
    known = device(job.device)
    capacity = parse_bytes(args.capacity, field="capacity") if args.capacity else None
    try:
        recording = _traced(job) if args.engine == "trace" else None
        if capacity is not None:
            report = capacity_report(
                job, capacity, engine=args.engine, settings=settings, recording=recording
            )
            if args.json:
                print(json.dumps(report.to_json()))
                return 0 if report.fits else 1
        if args.snapshot:
            _save_snapshot(job, args, settings, recording)
        if recording is not None:
            answer = from_trace(job, recording, settings=settings)
        else:
            answer = estimate(job, args.engine, args.detail, settings=settings)
    except NotReplayed as error:
        raise NotReplayed(with_the_file(str(error), job, args)) from error
    answer = replace(answer, warnings=tuple(with_the_file(text, job, args) for text in answer.warnings))
    if args.json:
        print(json.dumps(_with_verdict(job, answer, settings, recording)))
        return 0
    _table(job, answer)
    print()
    if capacity is not None:
        _print_capacity(report, answer)
        if not report.fits:
            print(f"\n{_plan_line(args)} --budget {shlex.quote(args.capacity)}`")
        return 0 if report.fits else 1
    if _verdicts(job, answer, known.name, settings, recording) is False:
        print(f"{_plan_line(args)}`")
    return 0


def _traced(job: TrainingJob) -> Recording:
    with progress_bar("tracing") as progress:
        return recording_of(job, "trace", progress=progress)


def _print_capacity(report: CapacityReport, answer: Estimate) -> None:
    print(report.sentence)
    short = report.shortfall(needed_bytes(answer))
    if short is not None:
        print(short)
    if report.death is not None:
        print(f"\n{report.death.oom.line}\n{report.death.oom.mechanism}")


def _plan_line(args: argparse.Namespace) -> str:
    """Where the plan is; without the closing backtick."""
    return f"what would make it fit, and at what price: `trainmem fit {flags_of(args)}"


def _with_verdict(
    job: TrainingJob, answer: Estimate, settings: AllocatorSettings | None, recording: Recording | None
) -> dict[str, Any]:
    """The contract's object, and whether the job's device holds it."""
    on = device(job.device)
    found = verdict(job, answer, on, settings, recording=recording, try_levers=False)
    return {**answer.to_json(), "verdict": found.to_json(on)}


def _save_snapshot(
    job: TrainingJob,
    args: argparse.Namespace,
    settings: AllocatorSettings | None,
    recording: Recording | None,
) -> None:
    from trainmem.predicted_snapshot import predicted_snapshot

    data = predicted_snapshot(job, args.engine, settings, recording=recording)
    write_file("snapshot", Path(args.snapshot), data)
    print(f"snapshot of {len(data):,} bytes in {args.snapshot}", file=sys.stderr)


def _refuse_beside_jobs(args: argparse.Namespace) -> None:
    """Flags that say or answer one job do nothing for a file of them."""
    for name, words in given_flags(args).items():
        raise ValueError(f"{name}: {words[0]} goes with one job; of --jobs, every line says its own")
    for name in ("capacity", "snapshot"):
        if getattr(args, name) is not None:
            raise ValueError(f"{name}: --{name} goes with one job, not with --jobs")


def _many(args: argparse.Namespace, settings: AllocatorSettings | None) -> int:
    jobs = list(jobs_from_file(args.jobs))
    failed = False
    with progress_bar(f"{len(jobs):,} jobs") as progress:
        for number, job in enumerate(jobs):

            def within(share: float, done: int = number) -> None:
                progress((done + share) / len(jobs))

            line = _answer_line(job, args, settings, within)
            failed = failed or "error" in line
            sys.stdout.write(json.dumps(line) + "\n")
            progress((number + 1) / len(jobs))
    sys.stdout.flush()
    return 1 if failed else 0


def _answer_line(
    job: TrainingJob | JobError,
    args: argparse.Namespace,
    settings: AllocatorSettings | None,
    progress: Callable[[float], None],
) -> dict[str, Any]:
    try:
        if isinstance(job, JobError):
            raise job
        device(job.device)
        recording = recording_of(job, "trace", progress=progress) if args.engine == "trace" else None
        if recording is not None:
            answer = from_trace(job, recording, settings=settings)
        else:
            answer = estimate(job, args.engine, args.detail, settings=settings)
        return _with_verdict(job, answer, settings, recording)
    except ValueError as error:
        return {"error": " ".join(str(error).split())}
    except Exception as error:  # one job must not take the others with it
        return {"error": f"internal error ({type(error).__name__}): please report this job"}


def _table(job: TrainingJob, answer: Estimate) -> None:
    name = job.model or str((job.config or {}).get("model_type", "config"))
    print(
        f"{name}: {answer.parameters:,} parameters ({answer.trainable_parameters:,} trained), "
        f"micro batch {job.micro_batch} x {job.sequence_length:,} tokens, {job.precision}, {job.optimizer}"
    )
    print(f"peak {format_gib(answer.peak_allocated_bytes, digits=4)} allocated: {answer.peak_instant}")
    if answer.peak_reserved_bytes is not None:
        print(f"     {format_gib(answer.peak_reserved_bytes, digits=4)} reserved")
    print(f"step 1 peaks at {format_gib(answer.first_step_peak_bytes, digits=4)}")
    print()
    width = max(map(len, BUCKETS))
    for bucket in BUCKETS:
        size = answer.buckets_at_peak.get(bucket, 0)
        if size:
            shown = f"{size / GIB:.3f}" if size >= GIB // 2000 else "<0.001"
            print(f"  {bucket:<{width}}  {shown:>9} GiB  {100 * size / answer.peak_allocated_bytes:5.1f}%")
    print()
    print(f"engine {answer.engine}; {error_sentence(job, answer.typical_error)}")
    for warning in answer.warnings:
        print(f"note: {warning}")


def _verdicts(
    job: TrainingJob,
    answer: Estimate,
    chosen: str,
    settings: AllocatorSettings | None,
    recording: Recording | None,
) -> bool | None:
    """Print them; whether the chosen device holds the job, None where it cannot run it."""
    found = verdict(job, answer, device(chosen), settings, recording=recording)
    print(found.sentence)
    if found.note:
        print(found.note)
    others = [known for known in devices() if known.cuda and known.name != chosen]
    need = answer.peak_reserved_bytes or answer.peak_allocated_bytes
    also = "also fits" if found.fits else "fits"
    if answer.is_sum:
        also = f"probably {also}"
        fits = [d.name for d in others if sum_answer(answer, d.allocator_limit_bytes) == "probably_fits"]
    else:
        fits = [known.name for known in others if need <= known.allocator_limit_bytes]
    print(f"{also} on: {', '.join(fits) if fits else 'no other single device in the list'}")
    return found.fits
