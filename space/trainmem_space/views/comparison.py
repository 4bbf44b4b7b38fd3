"""The bars at the peak: the scenario shown, the one just left as an outline, the whiteboard, the pins."""

from __future__ import annotations

from html import escape

from trainmem.device import Device, device, devices
from trainmem.job import TrainingJob
from trainmem.units import format_gb, format_gib
from trainmem_space import answers
from trainmem_space.charts.bar import Bar, CapacityLine, bars
from trainmem_space.charts.text import size
from trainmem_space.levers import FORM
from trainmem_space.session import MOST_PINS, Session, changed_levers

__all__ = ["capacity_lines", "comparison_view", "described"]

# The two machines of the textbook sum are always drawn, whatever machine is chosen.
_ALWAYS_DRAWN = ("h100-80gb", "spark")

_TEXTBOOK_NOTES = {"spark": ("the textbook sum takes it as 128 GiB, and as 118 GiB after the OS",)}
_TOLD = ("model", "micro_batch", "sequence_length", "precision", "optimizer", "attention", "checkpointing")
"""Told of every job, whatever their values; of the others what is not as it is by default."""


def comparison_view(session: Session, job: TrainingJob, detail: answers.Detail) -> str:
    """The figure and what can be done with it."""
    rows = [_now(session, job, detail)]
    if answers.answer(job, detail).engine != "whiteboard":
        rows.append(_whiteboard(job))
    rows += [_pin(index, pin, job, detail) for index, pin in enumerate(session.pins)]
    full = len(session.pins) >= MOST_PINS or job in session.pins
    pin = '<button type="button" data-action="pin"{}>Pin this scenario</button>'.format(
        " disabled" if full else ""
    )
    if len(session.pins) > 1:
        pin += ' <button type="button" data-action="unpin-all">Remove all pins</button>'
    notes = "; ".join((*device(job.device).notes[:2], *_TEXTBOOK_NOTES.get(device(job.device).name, ())))
    return (
        f"<h2>At the peak</h2>{bars(rows, capacity_lines(job.device))}"
        f'<p class="tm-actions">{pin}</p>{_note(notes)}'
    )


def capacity_lines(chosen: str) -> list[CapacityLine]:
    """Lines for the textbook sum's machines and the chosen one, named with what is sold and what is there."""
    picked = device(chosen)
    shown = [machine for machine in devices() if machine is picked or machine.name in _ALWAYS_DRAWN]
    return [line for machine in shown for line in _machine(machine, chosen=machine is picked)]


def _machine(machine: Device, *, chosen: bool) -> list[CapacityLine]:
    name = machine.title.removeprefix("NVIDIA ").partition(" (")[0]
    sold = format_gb(machine.marketed_bytes)
    named = name if sold.replace(" ", "") in name.replace(" ", "") else f"{name} {sold}"
    visible = CapacityLine(
        label=f"{named}, {format_gib(machine.visible_bytes)} visible", at_bytes=machine.visible_bytes
    )
    if chosen and machine.cuda:
        # What the verdict compares with: the context lies outside the allocator that the bars show.
        taken = "the OS and the context" if machine.os_share_bytes else "the context"
        at = machine.allocator_limit_bytes
    elif machine.os_share_bytes:
        taken, at = "the OS", machine.usable_bytes
    else:
        return [visible]
    label = f"{name} after {taken}, {format_gib(at)}"
    dashed = machine.os_share_bytes > 0
    return [visible, CapacityLine(label=label, at_bytes=at, dashed=dashed, chosen=chosen)]


def described(job: TrainingJob, beside: TrainingJob | None) -> str:
    """A job in the words of what sets it apart from ``beside``, or of every lever that matters or was moved."""
    form = {lever.field: lever for lever in FORM.values()}
    data = job.to_json()
    data |= {f"sharding.{name}": value for name, value in data["sharding"].items()}
    parts = []
    moved = changed_levers(beside or TrainingJob(model=job.model or "any"), job)
    names = moved if beside else [*_TOLD, *(name for name in moved if name not in (*_TOLD, "device"))]
    for name in names:
        value = data[name]
        if name == "model":
            parts.insert(0, str(value or "pasted config"))
        elif name == "lora":
            parts.append(f"LoRA rank {value['rank']}" if value else "no LoRA")
        elif name in form and name != "config":
            words = {key: text for text, key in form[name].choices}
            parts.append(f"{form[name].label.lower()} {words.get(value, value)}")
    return ", ".join(parts) or "this scenario"


def _note(text: str) -> str:
    return f'<p class="tm-note">{escape(text[0].upper() + text[1:])}.</p>' if text else ""


def _now(session: Session, job: TrainingJob, detail: answers.Detail) -> Bar:
    estimate = answers.answer(job, detail).to_json()
    total, reserved = estimate["peak_allocated_bytes"], estimate["peak_reserved_bytes"]
    held = f", reserved {size(reserved)}" if reserved is not None else ""
    if estimate["engine"] == "whiteboard":
        held = ", a sum alone: the tape does not know this job"
    outline = ghost = None
    if session.ghost is not None:
        outline = answers.answer(session.ghost, detail).to_json()["peak_allocated_bytes"]
        ghost = f"; outline: {size(outline)} with {escape(described(session.ghost, job))}"
    return Bar(
        caption=f"<b>{estimate['engine'].capitalize()}</b> {size(total)}{held}{ghost or ''}",
        buckets_bytes=estimate["buckets_at_peak"],
        total_bytes=total,
        end_bytes=max(total, reserved or 0),
        unused_bytes=max(0, (reserved or total) - total),
        outline_bytes=outline,
    )


def _whiteboard(job: TrainingJob) -> Bar:
    board = answers.board(job)
    return Bar(
        caption=f"<b>Whiteboard</b> {size(board.peak_bytes)}",
        buckets_bytes=board.buckets,
        total_bytes=board.peak_bytes,
        end_bytes=board.peak_bytes,
        slim=True,
    )


def _pin(index: int, pin: TrainingJob, job: TrainingJob, detail: answers.Detail) -> Bar:
    estimate = answers.answer(pin, detail).to_json()
    total = estimate["peak_allocated_bytes"]
    buttons = "".join(
        f' <button type="button" data-action="{action}" data-index="{index}">{text}</button>'
        for action, text in (("restore", "Restore"), ("unpin", "Remove"))
    )
    return Bar(
        caption=f"<b>Pinned</b> {size(total)}, {escape(described(pin, job))}{buttons}",
        buckets_bytes=estimate["buckets_at_peak"],
        total_bytes=total,
        end_bytes=total,
        slim=True,
    )
