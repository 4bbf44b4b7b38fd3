"""`trainmem fit`: what fits a device; with --model, the limits of a job, the plan for it and its floor."""

from __future__ import annotations

import argparse
import json
from typing import Any

from trainmem.cli.fit_job import print_job, print_table
from trainmem.cli.jobs import add_job_arguments, job_from_arguments
from trainmem.fit import DEFAULT_FAMILY, EXAMPLE, Room, Size, WhatFits, room, what_fits
from trainmem.fit.family import FAMILIES, family
from trainmem.fit.frontier import lesson_bytes
from trainmem.fit.published import PAGE
from trainmem.fit.report import JobFit, as_json, job_fit
from trainmem.fit.words import FAST, THUMB, TIGHT, billions, thumb_sentence
from trainmem.job import JobError
from trainmem.units import format_gib

__all__ = ["add_parser", "run"]

_PAGE_SETTINGS = ("micro_batch", "sequence_length", "checkpointing")
_OF_A_JOB = (
    "precision",
    "optimizer",
    "lora_rank",
    "lora_targets",
    "base_quantization",
    "task",
    "sharding",
    "data_parallel",
    "tensor_parallel",
    "pipeline_parallel",
    "offload",
)


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = subparsers.add_parser("fit", description=__doc__)
    add_job_arguments(parser)
    plain = ", ".join(f"{name} {getattr(PAGE, name)}" for name in _PAGE_SETTINGS)
    parser.epilog = f"without --model: {plain}; with --model, {parser.epilog}"
    parser.add_argument(
        "--budget",
        "--capacity",
        metavar="SIZE",
        help="this much memory in place of the device's own, e.g. 118GiB; with no --device, at the Spark's rates",
    )
    parser.add_argument(
        "--family",
        default=DEFAULT_FAMILY,
        metavar="|".join(found.key for found in FAMILIES),
        help="whose scaling curve sizes between models follow",
    )
    parser.add_argument(
        "--detail",
        choices=("fast", "exact"),
        default="exact",
        help="fast leaves the allocator out: what it refuses does not fit, what it allows may be a little over",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object (schema trainmem.fit/1)")


def run(args: argparse.Namespace) -> int:
    """Answer for a device, or for a job on it."""
    at = room(args.device or "spark", args.budget, is_device_assumed=args.device is None)
    args.device = at.device.name
    if args.model is not None:
        found = job_fit(job_from_arguments(args), at, args.detail)
        _print_json(as_json(at, about=found)) if args.json else _print_about(found, at, args)
        return 0
    asked = {name: getattr(args, name) for name in _OF_A_JOB if getattr(args, name) is not None}
    for name, value in asked.items():
        flags = " ".join(f"--{key.replace('_', '-')} {said}" for key, said in asked.items())
        raise JobError(
            f"{name}: {value} needs --model, as without one every method is shown on one device; for example "
            f"`trainmem fit --model llama3.1-8b {flags} --device {at.device.name}`"
        )
    for name in _PAGE_SETTINGS:
        if getattr(args, name) is None:
            setattr(args, name, str(getattr(PAGE, name)))
    args.model = family(args.family).members[0]
    page = what_fits(at, job_from_arguments(args), family=args.family, detail=args.detail)
    _print_json(as_json(at, page=page)) if args.json else _page(page)
    return 0


def _print_about(found: JobFit, at: Room, args: argparse.Namespace) -> None:
    print_job(found, at, args.detail, config_file=str(args.model), budget=args.budget)


def _print_json(answer: dict[str, Any]) -> None:
    print(json.dumps(answer))


def _page(page: WhatFits) -> None:
    like, at = page.like, page.room
    print(
        f"{_usable(at)}, of which {format_gib(at.context_bytes)} are the CUDA context; micro batch {like.micro_batch} "
        f"x {like.sequence_length:,} tokens, checkpointing {like.checkpointing}"
    )
    print()
    titles = {found.key: found.title for found in FAMILIES}
    head = (
        "method",
        "largest model",
        f"on {titles[page.family]}'s curve",
        "at the peak",
        f"{EXAMPLE}, fully trained, needs",
    )
    rows = [
        (
            row.method.title,
            _named(row.catalogue.largest),
            _sized(row.curve.largest, row.curve.beyond),
            _binding(row.catalogue.largest),
            _needs(row.example),
        )
        for row in page.rows
    ]
    print_table([head, *rows])
    print()
    if any(size.tight for row in page.rows for size in (row.catalogue.largest, row.example) if size):
        print(f"tight: {TIGHT}")
        print()
    if page.detail == "fast":
        print(FAST)
        print()
    print(f"{THUMB}{_thumb_start(at)}")
    for limit in page.lesson:
        print(f"  {limit.name}: {thumb_sentence(limit)}")
    print()
    for row in page.rows:
        size = row.catalogue.largest
        if size is not None:
            peak = format_gib(size.peak_allocated_bytes)
            print(f"{row.method.title}: {size.title} peaks at {peak}, {size.peak_instant}")
    measured = _measured(page)
    if measured:
        print()
        print("the same steps, predicted and measured:")
        print_table(measured)


def _usable(at: Room) -> str:
    """The memory that the page is about, and why a device's own is less than it shows."""
    if at.is_device_assumed:
        return at.place.removeprefix("in ")
    share = at.device.os_share_bytes
    if at.is_budget or not share:
        return f"{format_gib(at.usable_bytes)} on {at.device.title}"
    return (
        f"{format_gib(at.usable_bytes)} on {at.device.title} (torch shows {format_gib(at.device.visible_bytes)}, and "
        f"{format_gib(share)} are left to the system)"
    )


def _thumb_start(at: Room) -> str:
    """Where the rule of thumb starts from another size than the page."""
    start = lesson_bytes(at)
    if start == at.usable_bytes:
        return ""
    said, here = format_gib(start), format_gib(at.usable_bytes)
    return f" It starts from {said}, as is usually said of this device, not from {here}."


def _named(size: Size | None) -> str:
    if size is None:
        return "none fits"
    return f"{size.title} ({size.parameters / 1e9:.1f}B){', tight' if size.tight else ''}"


def _sized(largest: Size | None, beyond: Size | None) -> str:
    if largest is None:
        return "none fits"
    if beyond is None:
        return f"all fit, to {billions(largest.parameters)}"
    return f"{billions(largest.parameters)} fits, {billions(beyond.parameters)} does not"


def _binding(size: Size | None) -> str:
    if size is None:
        return "–"
    peak = format_gib(size.peak_allocated_bytes)
    return f"{peak}, mostly {size.binding_bucket.replace('_', ' ')}"


def _needs(size: Size | None) -> str:
    if size is None:
        return "–"
    peak = format_gib(size.peak_allocated_bytes)
    return f"{peak}, {'tight' if size.tight else 'fits' if size.fits else 'too much'}"


def _measured(page: WhatFits) -> list[tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for row in page.rows:
        for size in (row.catalogue.largest, row.example, *row.members):
            if size is not None and size.measured is not None and size.measured.peak_allocated_bytes:
                found[f"{size.title} {row.method.key}"] = (
                    size.title,
                    row.method.title,
                    format_gib(size.predicted_bytes, digits=4),
                    format_gib(size.measured.peak_allocated_bytes, digits=4),
                    f"{size.measured.outcome} on {size.measured.machine}",
                )
    head = ("model", "method", "predicted", "measured", "outcome")
    return [head, *found.values()] if found else []
