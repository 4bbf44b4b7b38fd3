"""``trainmem measure``: run a suite on this machine's GPU, or go on with a run that stopped."""

from __future__ import annotations

import argparse
import math
import shlex
import sys
from pathlib import Path
from typing import Any

from trainmem.extras import install_line
from trainmem.given_json import parse_json
from trainmem.units import parse_bytes

__all__ = ["add_parser", "run"]

NEEDS_BACKEND = install_line("torch")


def add_parser(subparsers: Any) -> None:
    """Add the command to the main parser."""
    parser = subparsers.add_parser(
        "measure",
        description=(
            "Measures every job of a suite in a fresh process and appends a row for each. The same command "
            "goes on where a stopped, killed or rebooted run ended."
        ),
    )
    parser.add_argument(
        "--suite", action="append", help="a suite by name, or all; may be given several times"
    )
    parser.add_argument("--job", help="one job as JSON instead of a suite")
    parser.add_argument("--run", type=Path, help="folder of the run (default: runs/<suite>)")
    parser.add_argument("--list", action="store_true", help="say what would be measured, and measure nothing")
    parser.add_argument("--only", help="only the trials whose label contains this text")
    parser.add_argument("--capacity", help="stand in for a smaller machine, for example 118GiB")
    parser.add_argument("--floor", help="host memory left alone on an integrated GPU (default: 16GiB)")
    parser.add_argument("--force", action="store_true", help="run jobs that are predicted over the cap")
    parser.add_argument(
        "--overlap", type=int, default=1, help="run so many jobs beside each other where times are not asked"
    )
    parser.add_argument(
        "--no-times", action="store_true", help="ask for memory only, so that all may overlap"
    )
    parser.add_argument("--minutes", type=float, help="start no job after so many minutes")
    parser.add_argument("--gpus", type=int, default=1, help="real ranks for the sharded suite")
    parser.add_argument("--allocator", help="allocator settings, for example expandable_segments:True")
    parser.add_argument(
        "--pretend", help="exercise the harness on the CPU with a pretended device of this size"
    )


def run(args: argparse.Namespace) -> int:
    """Exit 0 when every trial has a row of its own ending, 1 where one broke, 2 for wrong input."""
    try:
        from trainmem_backend.measure.command import Request, measure
    except ImportError as error:
        raise ValueError(f"{NEEDS_BACKEND} ({error.name} is missing)") from error
    if args.minutes is not None and not 0 <= args.minutes < math.inf:
        raise ValueError(f"minutes: {args.minutes} is not a finite number of minutes")
    request = Request(
        suites=tuple(args.suite or ()),
        job=_json(args.job) if args.job else None,
        folder=args.run,
        only=args.only,
        listing=args.list,
        capacity_bytes=parse_bytes(args.capacity, field="capacity") if args.capacity else None,
        capacity_text=args.capacity,
        floor_bytes=parse_bytes(args.floor, field="floor") if args.floor else None,
        force=args.force,
        overlap=args.overlap,
        times=not args.no_times,
        deadline_seconds=args.minutes * 60 if args.minutes is not None else None,
        gpus=args.gpus,
        allocator_settings=args.allocator or "",
        pretend_bytes=parse_bytes(args.pretend, field="pretend") if args.pretend else None,
        command=shlex.join(["trainmem", *sys.argv[1:]]),
    )
    return measure(request)


def _json(text: str) -> Any:
    try:
        return parse_json(text, unique_keys=True)
    except ValueError as error:
        raise ValueError(f"job: {error}") from None
