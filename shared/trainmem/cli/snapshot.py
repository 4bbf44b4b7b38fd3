"""``trainmem snapshot``: open a memory snapshot, say what it shows, compare, write a report."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from trainmem.buckets import BUCKETS
from trainmem.cli.files import write_file
from trainmem.snapshot.analysis import Analysis, DeviceAnalysis, analyse
from trainmem.snapshot.compare import Comparison, compare
from trainmem.snapshot.document import document_of
from trainmem.snapshot.examples import EXAMPLES, example_path
from trainmem.snapshot.notes import name_of, notes_of
from trainmem.snapshot.page import render_page
from trainmem.snapshot.reader import read_snapshot
from trainmem.snapshot.summary import Summary, summary_of, summary_of_estimate
from trainmem.snapshot.text import csv_cell
from trainmem.snapshot.verdict import verdict_of
from trainmem.units import format_gib

__all__ = ["add_parser", "run"]

_ESTIMATE_BYTES = 4_000_000
_SITES_SHOWN = 12


def add_parser(subparsers: Any) -> None:
    """Add the command to the parser of ``trainmem``."""
    parser = subparsers.add_parser(
        "snapshot",
        help="open a file of torch.cuda.memory._dump_snapshot and say what filled the memory",
        description="Open a memory snapshot without trusting it: when the peak was, what it was made of, what to do. "
        f"Reads pickle, gzip, JSON and PyTorch's HTML page. Examples: example:{', example:'.join(EXAMPLES)}.",
    )
    parser.add_argument("file", metavar="FILE", help="the snapshot, or example:NAME")
    parser.add_argument(
        "--compare",
        metavar="OTHER",
        help="the run before: another snapshot, or the JSON of `trainmem estimate --json`",
    )
    parser.add_argument("--html", metavar="OUT", type=Path, help="write a self-contained report")
    parser.add_argument("--csv", metavar="OUT", type=Path, help="write the call sites at the peak")
    parser.add_argument("--json", action="store_true", help="answer one JSON object (trainmem.snapshot/1)")


def run(args: argparse.Namespace) -> int:
    """Exit status 0. Raises ValueError for a file that is refused."""
    _check_outputs(args)
    analysis = _open(args.file)
    comparison = compare(_open_before(args.compare), summary_of(analysis)) if args.compare else None
    _write_files(args, analysis, comparison)
    if args.json:
        document = document_of(analysis)
        if comparison:
            document["comparison"] = comparison.to_json()
        print(json.dumps(document, allow_nan=False))
    else:
        print(_text(analysis, comparison))
    return 0


def _check_outputs(args: argparse.Namespace) -> None:
    """Refuse one file for two answers, and the snapshot's own for any."""
    taken = {Path(file).resolve(): "being read" for file in (args.file, args.compare) if file}
    for name in ("html", "csv"):
        path: Path | None = getattr(args, name)
        if path is None:
            continue
        if path.resolve() in taken:
            raise ValueError(f"{name}: {path.name} is {taken[path.resolve()]}; give another name")
        taken[path.resolve()] = f"the file of --{name}"


def _open(file: str) -> Analysis:
    return analyse(
        read_snapshot(example_path(file.removeprefix("example:")) if file.startswith("example:") else file)
    )


def _open_before(file: str) -> Summary:
    """A snapshot; or a prediction, which is JSON with the schema of an estimate."""
    path = Path(file)
    if path.is_file() and path.stat().st_size <= _ESTIMATE_BYTES:
        start = path.read_bytes()
        if start.lstrip()[:1] == b"{":
            try:
                answer = json.loads(start)
            except (ValueError, RecursionError):
                answer = None
            if isinstance(answer, dict) and str(answer.get("schema", "")).startswith("trainmem.estimate/"):
                return summary_of_estimate(answer)
    return summary_of(_open(file))


def _write_files(args: argparse.Namespace, analysis: Analysis, comparison: Comparison | None) -> None:
    if args.html:
        write_file("html", args.html, render_page(analysis, comparison=comparison))
        print(f"report: {args.html}", file=sys.stderr)
    if args.csv:
        write_file("csv", args.csv, _csv(analysis))
        print(f"call sites: {args.csv}", file=sys.stderr)


def _csv(analysis: Analysis) -> str:
    lines = ["device,call_site,bytes,blocks," + ",".join(BUCKETS)]
    for device in analysis.devices:
        for site in device.call_sites_at_peak:
            parts = (site.buckets_bytes.get(bucket, 0) for bucket in BUCKETS)
            cells: list[str | int] = [name_of(device), site.site, site.bytes, site.blocks, *parts]
            lines.append(",".join(map(csv_cell, cells)))
    return "\r\n".join(lines) + "\r\n"


def _text(analysis: Analysis, comparison: Comparison | None) -> str:
    lines = [f"What {analysis.snapshot.source.name} cannot tell:"] if notes_of(analysis) else []
    lines += [f"  - {note}" for note in notes_of(analysis)]
    lines += ["", *verdict_of(analysis)] if lines else verdict_of(analysis)
    if comparison:
        lines += ["", comparison.verdict]
    for device in analysis.devices:
        if device.peak_allocated_bytes:
            lines += ["", *_table(device, named=len(analysis.devices) > 1)]
    return "\n".join(lines)


def _table(device: DeviceAnalysis, *, named: bool) -> list[str]:
    peak = device.peak_allocated_bytes
    rows = [
        (bucket.replace("_", " "), size)
        for bucket, size in device.buckets_at_peak.items()
        if size >= peak // 10_000
    ]
    sites = [(site.site, site.bytes) for site in device.call_sites_at_peak]
    shown = sites[:_SITES_SHOWN]
    if len(sites) > len(shown):
        shown.append(
            (f"{len(sites) - len(shown):,} other call sites", sum(size for _, size in sites[len(shown) :]))
        )
    lines = [f"{name_of(device)}, at its peak" if named else "At the peak"]
    lines += [_line(name, size, peak) for name, size in sorted(rows, key=lambda row: -row[1])]
    lines += [_line("allocated", peak, peak), "", "By call site"]
    lines += [_line(name, size, peak) for name, size in shown]
    return lines


def _line(name: str, size: int, whole: int) -> str:
    return f"  {format_gib(size):>11}  {size / whole:6.1%}  {name}"
