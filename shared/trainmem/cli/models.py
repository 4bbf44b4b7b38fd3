"""`trainmem models`: the catalogue."""

from __future__ import annotations

import argparse
import json
from typing import Any

from trainmem.job import Task
from trainmem.model import architecture_of, catalogue

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = subparsers.add_parser("models", description=__doc__)
    parser.add_argument("search", nargs="?", default=None, help="part of a name or id")
    parser.add_argument("--json", action="store_true")


def run(args: argparse.Namespace) -> int:
    """List the models that match."""
    rows = []
    for entry in catalogue.entries():
        if args.search and args.search.lower() not in f"{entry.name} {entry.hub_id or ''}".lower():
            continue
        encoder = entry.family in ("bert", "modernbert")
        task: Task = "sequence_classification" if encoder else "causal_lm"
        parameters = architecture_of(entry.config, task).parameter_count
        rows.append(
            {"name": entry.name, "id": entry.hub_id, "family": entry.family, "parameters": parameters}
        )
    if args.json:
        print(json.dumps({"schema": "trainmem.models/1", "models": rows}))
        return 0
    if not rows:
        raise ValueError(f"search: no model has {args.search!r} in its name; `trainmem models` lists all")
    width = max(len(str(row["name"])) for row in rows)
    print(f"{'name':<{width}}  {'parameters':>17}  {'family':<12} Hugging Face id")
    for row in rows:
        print(f"{row['name']:<{width}}  {row['parameters']:>17,}  {row['family']:<12} {row['id'] or '–'}")
    return 0
