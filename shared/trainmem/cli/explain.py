"""`trainmem explain`: every term of the whiteboard's sum with its equation, and the gap to the replay."""

from __future__ import annotations

import argparse
import json
from typing import Any

from trainmem.cli.jobs import add_job_arguments, job_from_arguments
from trainmem.device import device
from trainmem.estimate import estimate
from trainmem.model import resolve
from trainmem.units import format_gib
from trainmem.whiteboard import whiteboard

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = subparsers.add_parser("explain", description=__doc__)
    add_job_arguments(parser)
    parser.add_argument("--json", action="store_true")


def run(args: argparse.Namespace) -> int:
    """Explain one job."""
    job = job_from_arguments(args)
    device(job.device)
    board = whiteboard(job, resolve(job).architecture)
    answer = estimate(job)
    if args.json:
        terms = [
            {
                "bucket": term.bucket,
                "name": term.name,
                "equation": term.equation,
                "substituted": term.substituted,
                "bytes": term.bytes,
                "source": term.source,
            }
            for term in board.terms
        ]
        items = [{"name": i.name, "bytes": i.bytes} for i in board.gap.items]
        print(
            json.dumps(
                {
                    "schema": "trainmem.explain/1",
                    "job": job.to_json(),
                    "terms": terms,
                    "whiteboard_bytes": board.peak_bytes,
                    "gap": items,
                    "estimate": answer.to_json(),
                }
            )
        )
        return 0
    for term in board.terms:
        print(f"{term.bucket}: {term.name}")
        print(f"    {term.equation}")
        print(f"    {term.substituted}")
    print()
    print(f"whiteboard {format_gib(board.peak_bytes)}, everything taken as alive at once")
    for item in board.gap.items:
        print(f"  {item.bytes / (1 << 30):>+9.3f} GiB  {item.name}")
    print(f"{answer.engine} {format_gib(answer.peak_allocated_bytes)}: {answer.peak_instant}")
    return 0
