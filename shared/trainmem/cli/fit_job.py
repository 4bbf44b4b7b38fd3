"""What `trainmem fit --model` prints: the plan, the limits, the step's floor, rent or own."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

from trainmem.estimate import Detail
from trainmem.fit import Limit, Plan, Plans, RentOrOwn
from trainmem.fit.plan import EXPANDABLE
from trainmem.fit.report import JobFit
from trainmem.fit.room import Room
from trainmem.fit.words import (
    BY_DEFAULT,
    FAST,
    ORDER,
    TIGHT,
    fraction_sentence,
    limit_titles,
    limits_doubt,
    mathematics_in_words,
    offer_in_words,
    offer_needs,
    offers_doubt,
    outcome_sentence,
    plan_answer,
    plan_sum,
    smallest_device,
    step_time,
)
from trainmem.flags import CONFIG_FILE, job_command
from trainmem.frozen_base import frozen_base_note
from trainmem.job import TrainingJob
from trainmem.units import format_gib

__all__ = ["print_job", "print_table"]


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Columns as wide as they need be."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def print_job(
    found: JobFit, at: Room, detail: Detail, *, config_file: str = CONFIG_FILE, budget: str | None = None
) -> None:
    """Everything about one job on one device; of plans, the commands as ``config_file`` and ``budget`` were given."""
    capacity = f" --capacity {shlex.quote(budget)}" if budget else ""
    _plans(found.plans, lambda job: job_command("estimate", job, config_file) + capacity)
    print()
    _limits(found)
    print()
    _floor(found, at)
    print()
    _offers(found.rent_or_own)
    if detail == "fast" and found.plans.engine != "whiteboard":
        print()
        print(FAST)


def _plans(found: Plans, command: Callable[[TrainingJob], str]) -> None:
    print(f"{_described(found.job)} {outcome_sentence(found)}.")
    if base := frozen_base_note(found.job, found.engine):
        print(base)
    if found.fits:
        return
    if found.expandable:
        print(f"It would with {EXPANDABLE}, which costs nothing.")
    if not found.plans:
        print("No list of levers makes it fit.")
        return
    print()
    makes = "may make" if found.engine == "whiteboard" else "makes"
    print(f"What {makes} it fit; savings are of the tensors at the peak. {ORDER}")
    for number, plan in enumerate(found.plans, 1):
        _plan(number, plan, found)
        print(f"   {command(plan.job)}")


def _plan(number: int, plan: Plan, found: Plans) -> None:
    shown = plan_sum(found.peak_bytes, plan)
    less = "".join(f" - {saved.removesuffix(' GiB')}" for saved in shown.saved)
    sums = f"{shown.before.removesuffix(' GiB')}{less} = {shown.after}"
    held = plan.held_bytes
    holds = f" (the allocator holds {format_gib(held)})" if held is not None else ""
    doubt = plan_answer(plan)
    print(f"{number}. {sums}{holds}, {f'{doubt}, ' if doubt else ''}{step_time(plan.step_time_share)}")
    for step, saved in zip(plan.steps, shown.saved, strict=True):
        print(
            f"   {step.name} ({step.flags}): saves {saved}, {step_time(step.price.share)} ({step.price.basis}: "
            f"{step.price.source}), {mathematics_in_words(step.mathematics)}"
        )
    if plan.tight:
        print(f"   tight: {TIGHT}")
    if base := frozen_base_note(plan.job, found.engine):
        print(f"   {base}")


def _described(job: TrainingJob) -> str:
    name = job.model or str((job.config or {}).get("model_type", "config"))
    adapters = f", LoRA rank {job.lora.rank}" if job.lora else ""
    recipe = f"{job.precision}, {job.optimizer}{adapters}"
    return f"{name}, micro batch {job.micro_batch} x {job.sequence_length:,}, {recipe},"


def _limits(found: JobFit) -> None:
    said = limits_doubt(found.plans)
    doubt = f" ({said[0].lower()}{said[1:]})" if said else f", the allocator {BY_DEFAULT}"
    print(f"how far it goes, everything else as it is{doubt}:")
    rows = [("configuration", *limit_titles(found.plans.job))]
    for limits in found.limits:
        rows.append((limits.title, _limit(limits.micro_batch), _limit(limits.sequence_length)))
    print_table(rows)
    if any(part.tight for limits in found.limits for part in (limits.micro_batch, limits.sequence_length)):
        print(f"tight: {TIGHT}")


def _limit(limit: Limit) -> str:
    if not limit.value:
        return "not even 1"
    note = ", all the model takes" if limit.is_model_end else ""
    tight = ", tight" if limit.tight else ""
    measured = f", measured {limit.measured:,}" if limit.measured is not None else ""
    return f"{limit.value:,}{note}{tight}{measured}"


def _floor(found: JobFit, at: Room) -> None:
    floor = found.floor
    place = at.rates if at.is_device_assumed else f"on {at.name}"
    compute = (
        "unknown rate" if floor.compute_seconds is None else f"{floor.compute_seconds:.3g} s of arithmetic"
    )
    print(
        f"a step takes at least {floor.seconds:.3g} s {place}: {compute}, {floor.optimizer_seconds:.3g} s for "
        f"the optimizer's {format_gib(floor.optimizer_bytes)}"
    )
    if found.fraction is not None:
        print(fraction_sentence(floor, found.fraction))


def _offers(found: RentOrOwn) -> None:
    print(f"rent or own{found.changed_in_words}:")
    rows = [("machine", "each needs", "may hold", "answer", "step at least", "tokens/s at most")]
    rows += [
        (
            f"{offer.count} x {offer.room.device.title.removeprefix('NVIDIA ')}",
            offer_needs(offer),
            format_gib(offer.room.limit_bytes),
            offer_in_words(offer),
            f"{offer.floor.seconds:.3g} s",
            f"{offer.tokens_per_second:,.0f}",
        )
        for offer in found.offers
    ]
    print_table(rows)
    if doubt := offers_doubt(found):
        print(doubt)
    print(smallest_device(found, lambda offer: offer.room.device.name))
