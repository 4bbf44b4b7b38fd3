"""`trainmem fit`: what fits a device; with --model, the limits of a job, the plan for it and its floor."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from trainmem.cli.jobs import add_job_arguments, job_from_arguments
from trainmem.fit import DEFAULT_FAMILY, Plans, RentOrOwn, Size, WhatFits, room, what_fits
from trainmem.fit.family import FAMILIES, family
from trainmem.fit.frontier import EXAMPLE
from trainmem.fit.limits import Limit
from trainmem.fit.outcome import held_bytes
from trainmem.fit.plan import EXPANDABLE
from trainmem.fit.report import JobFit, as_json, job_fit
from trainmem.fit.room import Room
from trainmem.job import JobError, TrainingJob
from trainmem.units import format_gib

__all__ = ["add_parser", "run"]

_PAGE_DEFAULTS = {"micro_batch": "1", "sequence_length": "2048", "checkpointing": "full"}
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
    parser.add_argument(
        "--budget", metavar="SIZE", help="this much memory in place of the device's own, e.g. 118GiB"
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
    at = room(args.device or "spark", args.budget)
    args.device = at.device.name
    if args.model is not None:
        found = job_fit(job_from_arguments(args), at, args.detail)
        _print_json(as_json(at, about=found)) if args.json else _job(found, at)
        return 0
    for name in _OF_A_JOB:
        if getattr(args, name) is not None:
            raise JobError(
                f"{name}: {getattr(args, name)} needs --model; without one every method is shown, on one device"
            )
    for name, value in _PAGE_DEFAULTS.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    args.model = family(args.family).members[0]
    page = what_fits(at, job_from_arguments(args), family=args.family, detail=args.detail)
    _print_json(as_json(at, page=page)) if args.json else _page(page)
    return 0


def _print_json(answer: dict[str, Any]) -> None:
    print(json.dumps(answer))


def _page(page: WhatFits) -> None:
    like, at = page.like, page.room
    print(
        f"{format_gib(at.usable_bytes)} on {at.device.title}, of which {format_gib(at.context_bytes)} are the CUDA "
        f"context; micro batch {like.micro_batch} x {like.sequence_length:,} tokens, checkpointing "
        f"{like.checkpointing}"
    )
    print()
    titles = {found.key: found.title for found in FAMILIES}
    head = ("method", "largest model", f"on {titles[page.family]}'s curve", "at the peak", f"{EXAMPLE} needs")
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
    _table([head, *rows])
    print()
    print("by rule of thumb, which knows neither batch nor recipe:")
    for limit in page.lesson:
        print(f"  {limit.name}: {limit.answer} ({limit.substituted})")
    print()
    for row in page.rows:
        size = row.catalogue.largest
        if size is not None:
            peak = format_gib(size.estimate.peak_allocated_bytes)
            print(f"{row.method.title}: {size.title} peaks at {peak}, {size.estimate.peak_instant}")
    measured = _measured(page)
    if measured:
        print()
        print("the same steps, predicted and measured:")
        _table(measured)


def _named(size: Size | None) -> str:
    if size is None:
        return "none"
    return f"{size.title} ({size.parameters / 1e9:.1f}B){', tight' if size.tight else ''}"


def _sized(largest: Size | None, beyond: Size | None) -> str:
    if largest is None:
        return "none of it"
    if beyond is None:
        return f"all, to {largest.parameters / 1e9:.3g}B"
    return f"{largest.parameters / 1e9:.3g}B, not {beyond.parameters / 1e9:.3g}B"


def _binding(size: Size | None) -> str:
    if size is None:
        return ""
    peak = format_gib(size.estimate.peak_allocated_bytes)
    return f"{peak}, mostly {size.binding_bucket.replace('_', ' ')}"


def _needs(size: Size | None) -> str:
    if size is None:
        return ""
    peak = format_gib(size.estimate.peak_allocated_bytes)
    return f"{peak}, {'tight' if size.tight else 'fits' if size.fits else 'too much'}"


def _measured(page: WhatFits) -> list[tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for row in page.rows:
        for size in (row.catalogue.largest, row.example, *row.members):
            if size is not None and size.measured is not None and size.measured.peak_allocated_bytes:
                found[f"{size.title} {row.method.key}"] = (
                    size.title,
                    row.method.title,
                    format_gib(size.estimate.peak_allocated_bytes, digits=4),
                    format_gib(size.measured.peak_allocated_bytes, digits=4),
                    f"{size.measured.outcome} on {size.measured.machine}",
                )
    head = ("model", "method", "predicted", "measured", "")
    return [head, *found.values()] if found else []


def _table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _job(found: JobFit, at: Room) -> None:
    _plan(found.plans, at)
    print()
    print("limits, everything else as it is:")
    rows = [("configuration", "largest micro batch", "longest sequence")]
    for limits in found.limits:
        rows.append((limits.title, _limit(limits.micro_batch), _limit(limits.sequence_length)))
    _table(rows)
    print()
    _floor(found, at)
    print()
    _offers(found.rent_or_own)


def _plan(found: Plans, at: Room) -> None:
    held, limit = held_bytes(found.estimate), at.limit_bytes
    name = _described(found.job)
    if found.fits:
        tight = " once the allocator gives idle memory back" if found.tight else ""
        print(f"{name} fits on {at.name}{tight}: {format_gib(held)} of {format_gib(limit)}.")
        return
    print(f"{name} does not fit on {at.name}: {format_gib(held)}, short by {format_gib(held - limit)}.")
    if found.expandable:
        print(f"It would with {EXPANDABLE}, which costs nothing.")
    if not found.plans:
        print("No list of levers makes it fit.")
        return
    print("What makes it fit, by what it costs:")
    for number, plan in enumerate(found.plans, 1):
        tight = ", tight" if plan.tight else ""
        print(
            f"{number}. {format_gib(held_bytes(plan.estimate))}{tight}, step time {plan.step_time_share:+.0%}"
        )
        for step in plan.steps:
            share = step.price.share
            print(
                f"   {step.name}: saves {format_gib(step.saved_bytes)}, step time {share:+.0%} "
                f"({step.price.basis}: {step.price.source}), {_mathematics(step.lever.mathematics)}"
            )


def _mathematics(kind: str) -> str:
    return "identical mathematics" if kind == "identical" else kind


def _described(job: TrainingJob) -> str:
    name = job.model or str((job.config or {}).get("model_type", "config"))
    adapters = f", LoRA rank {job.lora.rank}" if job.lora else ""
    recipe = f"{job.precision}, {job.optimizer}{adapters}"
    return f"{name}, micro batch {job.micro_batch} x {job.sequence_length:,}, {recipe},"


def _limit(limit: Limit) -> str:
    if not limit.value:
        return "not even 1"
    note = ", all the model takes" if limit.is_model_end else ""
    tight = ", tight" if limit.tight else ""
    measured = f", measured {limit.measured:,}" if limit.measured is not None else ""
    return f"{limit.value:,}{note}{tight}{measured}"


def _floor(found: JobFit, at: Room) -> None:
    floor = found.floor
    compute = (
        "unknown rate" if floor.compute_seconds is None else f"{floor.compute_seconds:.3g} s of arithmetic"
    )
    print(
        f"a step takes at least {floor.seconds:.3g} s on {at.name}: {compute}, {floor.optimizer_seconds:.3g} s for "
        f"the optimizer's {format_gib(floor.optimizer_bytes)}"
    )
    part = found.fraction
    if part is not None:
        print(
            f"measured steps like it ({part.alike}, {part.machine}) reach {part.least:.0%} to {part.most:.0%} of "
            f"their floor: expect about {floor.seconds / part.median:.3g} s"
        )


def _offers(found: RentOrOwn) -> None:
    print("rent or own:")
    rows = [("machine", "each holds", "fits", "step at least", "tokens/s at most")]
    smallest = found.smallest
    is_rented = smallest is not None and smallest.room.device == found.rented[0].room.device
    for offer in (*found.rented, *([] if smallest is None or is_rented else [smallest])):
        rows.append(
            (
                f"{offer.count} x {offer.room.device.title.removeprefix('NVIDIA ')}",
                f"{format_gib(held_bytes(offer.estimate))} of {format_gib(offer.room.limit_bytes)}",
                "no" if not offer.fits else "tight" if offer.tight else "yes",
                f"{offer.floor.seconds:.3g} s",
                f"{offer.tokens_per_second:,.0f}",
            )
        )
    _table(rows)
    print(
        f"the smallest single device in the list that runs it: {smallest.room.device.name}"
        if smallest
        else "no single device in the list runs it"
    )
