"""``trainmem publish``: runs into a dataset folder, with predictions beside every row."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from trainmem.cli.measure import NEEDS_BACKEND
from trainmem.results import ENGINES

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Add the command to the main parser."""
    parser = subparsers.add_parser(
        "publish",
        description=(
            "Refuses implausible rows with the reason, asks every engine for each job, and writes JSON "
            "Lines, parquet, a card and the accuracy table. Nothing leaves the machine without --repo."
        ),
    )
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="folders of runs, or .jsonl files")
    parser.add_argument(
        "--out", type=Path, default=Path("dataset"), help="folder to write (default: dataset)"
    )
    parser.add_argument("--bundled", action="store_true", help="also take the rows bundled with the package")
    parser.add_argument(
        "--engines", default=",".join(ENGINES), help=f"engines to ask (default: {','.join(ENGINES)})"
    )
    parser.add_argument(
        "--missing", action="store_true", help="ask an engine only where it has not answered yet"
    )
    parser.add_argument("--title", default="Training memory, measured", help="title of the card")
    parser.add_argument("--repo", help="push the folder to this Hugging Face dataset, owner/name")
    parser.add_argument(
        "--bundle", metavar="NAME", help="also write the runs' rows into the package as NAME.jsonl"
    )


def run(args: argparse.Namespace) -> int:
    """Exit 0, or 1 where rows were refused, or 2 for wrong input."""
    try:
        from trainmem_backend.publish.command import publish
    except ImportError as error:
        print(f"publish: {NEEDS_BACKEND} ({error.name} is missing)", file=sys.stderr)
        return 2
    return publish(
        runs=args.runs,
        out=args.out,
        bundled=args.bundled,
        engines=tuple(name.strip() for name in args.engines.split(",") if name.strip()),
        title=args.title,
        repo=args.repo,
        bundle_name=args.bundle,
        missing_only=args.missing,
    )
