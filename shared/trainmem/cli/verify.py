"""``trainmem verify``: does the prediction hold on this GPU?"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from trainmem.cli.measure import NEEDS_BACKEND
from trainmem.units import parse_bytes

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Add the command to the main parser."""
    parser = subparsers.add_parser(
        "verify",
        description="Measures eight small jobs; exits 1 where one is further off than the tolerance.",
    )
    parser.add_argument("--tolerance", type=float, default=2.0, help="largest error in per cent (default: 2)")
    parser.add_argument("--run", type=Path, help="folder to keep the rows in (default: a temporary one)")
    parser.add_argument("--pretend", help="size of a device to pretend on the CPU")


def run(args: argparse.Namespace) -> int:
    """Exit 0 when every prediction held, 1 when one did not or nothing was measured, 2 for wrong input."""
    try:
        from trainmem_backend.measure.command import verify
    except ImportError as error:
        raise ValueError(f"{NEEDS_BACKEND} ({error.name} is missing)") from error
    if not 0 < args.tolerance < 100:
        raise ValueError(f"tolerance: {args.tolerance} is not between 0 and 100 per cent")
    return verify(
        tolerance=args.tolerance / 100,
        folder=args.run,
        pretend_bytes=parse_bytes(args.pretend, field="pretend") if args.pretend else None,
        command=shlex.join(["trainmem", *sys.argv[1:]]),
    )
