"""`trainmem trace`: the real model, or one's own CUDA script, replayed on fake tensors with no GPU."""

from __future__ import annotations

import argparse
import faulthandler
import json
import time
from pathlib import Path
from typing import Any

from trainmem.buckets import BUCKETS
from trainmem.cli.bar import progress_bar
from trainmem.cli.jobs import add_job_arguments, flags_of, given_flags, job_from_arguments
from trainmem.contributors import contributors
from trainmem.device import device
from trainmem.extras import require_backend
from trainmem.held_over import held_over_note
from trainmem.instant import describe_instant
from trainmem.job import TrainingJob
from trainmem.recording import Counters, Recording, counters, most_reserved, read_step
from trainmem.relief import relief_note
from trainmem.units import format_gib
from trainmem.verdict import verdict_of_recording

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "trace",
        description=__doc__,
        epilog="flags of trainmem come before SCRIPT, the script's own after it; of a job's flags a script takes "
        "--device, and --data-parallel N: it runs as the first of N processes, as torchrun would start it",
    )
    add_job_arguments(parser)
    parser.add_argument("--steps", type=int, default=3, metavar="N", help="stop after N optimizer steps")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("script", nargs="?", type=Path, metavar="SCRIPT", help="a training script for CUDA")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's own arguments")


def run(args: argparse.Namespace) -> int:
    """Trace a script or a job. Raises ValueError for wrong input and for what cannot be traced."""
    if not 1 <= args.steps <= 100:
        raise ValueError(f"steps: {args.steps} is not a whole number from 1 to 100")
    if (args.script is None) == (args.model is None):
        raise ValueError("give a training script or --model, one of the two")
    job = job_from_arguments(args) if args.script is None else None
    if job is None and not args.script.is_file():
        raise ValueError(f"script: {args.script.name} is not a file")
    ranks = _ranks(args) if job is None else 1
    on = device(job.device if job is not None else args.device or "h200")
    # only here: importing torch and transformers takes seconds, a wrong flag is said at once
    require_backend("the trace")
    if not faulthandler.is_enabled():  # a script runs in this process: where it crashes, its line is shown
        faulthandler.enable(all_threads=False)
    began = time.perf_counter()
    from trainmem_backend.trace import trace, trace_script, versions

    imported = time.perf_counter()
    with progress_bar("tracing") as progress:
        if job is not None:
            recording = trace(job, steps=args.steps, progress=progress)
        else:
            recording = trace_script(
                args.script,
                args.arguments,
                device=on.name,
                steps=args.steps,
                ranks=ranks,
                progress=progress,
            )
    seconds = {"imports": round(imported - began, 2), "trace": round(time.perf_counter() - imported, 2)}
    result = counters(recording)
    steps = max(mark.step for mark in recording.marks if mark.phase == "optimizer")
    held_over = held_over_note(recording, result, steps)
    if held_over is not None:
        recording.notes.append(held_over)
    found = None
    if job is not None or args.device:
        found = verdict_of_recording(
            recording,
            allocated_bytes=read_step(recording, result, steps).peak_allocated_bytes,
            reserved_bytes=most_reserved(recording, result, steps),
            device=on,
        )
    relief = (
        relief_note(recording, read_step(recording, result, steps)) if found and found.fits is False else None
    )
    if args.json:
        recording.notes += [relief] if relief else []
        answer = _as_json(recording, result, steps, versions())
        print(json.dumps({**answer, "verdict": found and found.to_json(on), "seconds": seconds}))
        return 0
    _report(recording, result, steps, "optimizer" if job is None else job.optimizer)
    print()
    for note in (*recording.warnings, *recording.notes):
        print(f"note: {note}")
    if found is not None:
        print(f"{found.sentence}\n")
    if relief:
        print(f"{relief}\n")
    if relief and job is not None:
        print(f"what would make it fit, and at what price: `trainmem fit {flags_of(args)}`\n")
    print(f"traced on {versions()}, in {seconds['trace']:.1f} s after {seconds['imports']:.1f} s of imports")
    return 0


def _ranks(args: argparse.Namespace) -> int:
    """Of how many ranks a script is one. Raises ValueError for flags that a script sets itself."""
    given = given_flags(args)
    for name, words in given.items():
        if name not in _OF_A_SCRIPT:
            raise ValueError(f"{words[0]}: goes with --model; a script sets it itself")
    return TrainingJob.from_json(
        {"model": "any", "sharding": {"mode": "ddp", "data_parallel": args.data_parallel}}
    ).sharding.data_parallel


_OF_A_SCRIPT = ("device", "data_parallel")
"""Flags of a job that say where a script runs, not what it does."""


def _report(recording: Recording, result: Counters, steps: int, optimizer: str) -> None:
    steady = read_step(recording, result, steps)
    print(f"{recording.parameters:,} parameters ({recording.trainable_parameters:,} trained)")
    where = describe_instant(steady.peak_phase, steady.peak_op, steady.peak_module, optimizer)
    print(f"peak {format_gib(steady.peak_allocated_bytes, digits=4)} allocated in step {steps}: {where}")
    print(f"     {format_gib(most_reserved(recording, result, steps), digits=4)} reserved")
    for step in range(1, steps + 1):
        print(
            f"step {step} peaks at {format_gib(read_step(recording, result, step).peak_allocated_bytes, digits=4)}"
        )
    print()
    for bucket in BUCKETS:
        size = steady.buckets_at_peak.get(bucket, 0)
        if size:
            share = 100 * size / steady.peak_allocated_bytes
            print(f"  {bucket:<16}  {size / (1 << 30):>9.3f} GiB  {share:5.1f}%")
    print()
    for name, size in steady.phases.items():
        print(f"  {name.removesuffix('_bytes').replace('_', ' '):<16}  {size / (1 << 30):>9.3f} GiB")
    print("\nlargest at the peak")
    for one in contributors(recording, result, steady.peak_event):
        where = f"{one.module}: {one.op}" if one.module else one.op
        times = f" x{one.modules}" if one.modules > 1 else ""
        print(f"  {one.size_bytes / (1 << 30):>9.3f} GiB  {one.bucket:<16}  {where}{times}")


def _as_json(recording: Recording, result: Counters, steps: int, versions: str) -> dict[str, Any]:
    steady = read_step(recording, result, steps)
    return {
        "schema": "trainmem.trace/1",
        "traced_on": versions,
        "parameters": recording.parameters,
        "trainable_parameters": recording.trainable_parameters,
        "peak_allocated_bytes": steady.peak_allocated_bytes,
        "peak_reserved_bytes": most_reserved(recording, result, steps),
        "peak_phase": steady.peak_phase,
        "peak_op": steady.peak_op,
        "peak_module": steady.peak_module,
        "buckets_at_peak": steady.buckets_at_peak,
        "phases": steady.phases,
        "steps": [read_step(recording, result, step).peak_allocated_bytes for step in range(1, steps + 1)],
        "notes": [*recording.warnings, *recording.notes],
        "contributors": [
            {
                "module": one.module,
                "modules": one.modules,
                "op": one.op,
                "bucket": one.bucket,
                "bytes": one.size_bytes,
            }
            for one in contributors(recording, result, steady.peak_event)
        ],
    }
