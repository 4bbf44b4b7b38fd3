"""`trainmem explain`: every term of the whiteboard's sum with its equation, and the gap to the replay."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

from trainmem.buckets import Bucket
from trainmem.cli.jobs import add_job_arguments, job_from_arguments, with_the_file
from trainmem.device import device
from trainmem.estimate import Estimate, estimate
from trainmem.job import TrainingJob
from trainmem.model import resolve
from trainmem.units import GIB
from trainmem.whiteboard import GapItem, Whiteboard, whiteboard

__all__ = ["add_parser", "run"]

_TOLD_BYTES = GIB // 1000
"""What three decimals show; a smaller part of the rest is in the total alone."""


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
    # where the whiteboard itself is the answer there is no replay to lay its gap beside
    items = board.gap.items if answer.engine != "whiteboard" else ()
    rests = board.rests(answer.buckets_at_peak) if items else {}
    if args.json:
        print(json.dumps(_as_json(job, board, items, rests, answer)))
        return 0
    for term in board.terms:
        print(f"{term.bucket}: {term.name}")
        print(f"    {term.equation}")
        print(f"    {term.substituted}")
    print()
    _print_sum(board, items, rests, answer)
    for warning in answer.warnings:
        print(f"note: {with_the_file(warning, job, args)}")
    return 0


def _as_json(
    job: TrainingJob,
    board: Whiteboard,
    items: Sequence[GapItem],
    rests: Mapping[Bucket, int],
    answer: Estimate,
) -> dict[str, Any]:
    """``whiteboard_bytes`` + the ``gap`` + ``rest_bytes`` is the estimate's peak, to the byte."""
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
    return {
        "schema": "trainmem.explain/1",
        "job": job.to_json(),
        "terms": terms,
        "whiteboard_bytes": board.peak_bytes,
        "gap": [{"bucket": item.bucket, "name": item.name, "bytes": item.bytes} for item in items],
        "rest_bytes": sum(rests.values()),
        "rest_by_bucket": rests,
        "estimate": answer.to_json(),
    }


def _print_sum(
    board: Whiteboard, items: Sequence[GapItem], rests: Mapping[Bucket, int], answer: Estimate
) -> None:
    lines = [(board.peak_bytes, "whiteboard: everything taken as alive at once")]
    lines += [(item.bytes, f"  {item.name}") for item in items]
    if items:
        parts = ", ".join(f"{b} {size / GIB:+.3f}" for b, size in rests.items() if abs(size) >= _TOLD_BYTES)
        lines.append(
            (sum(rests.values()), f"  the rest, which no line names{f' ({parts})' if parts else ''}")
        )
    lines.append((answer.peak_allocated_bytes, f"{answer.engine}: {answer.peak_instant}"))
    totals = (0, len(lines) - 1)
    for index, (size, text) in enumerate(lines):
        sign = "" if index in totals else "+"
        print(f"{size / GIB:>{sign}9.3f} GiB {size:>{sign}19,} B  {text}")
