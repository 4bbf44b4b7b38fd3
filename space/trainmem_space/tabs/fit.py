"""What fits: the largest model by method on a device, and the plan for the Calculator's job there."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache, wraps
from importlib.resources import files
from typing import Any

import gradio as gr

from trainmem.device import device, devices
from trainmem.fit import (
    DEFAULT_FAMILY,
    Room,
    WhatFits,
    measured_fraction,
    plans,
    rent_or_own,
    room,
    step_floor,
    what_fits,
)
from trainmem.fit.family import FAMILIES, family
from trainmem.fit.published import PAGE
from trainmem.fit.report import limits_of
from trainmem.fit.words import limits_doubt
from trainmem.job import TrainingJob
from trainmem_space.address import job_of, tab_of
from trainmem_space.answers import Detail, replayable
from trainmem_space.shell import Shell
from trainmem_space.tabs.calculator import DEFAULT_JOB
from trainmem_space.views import view
from trainmem_space.views.comparison import described
from trainmem_space.views.fit import page_view
from trainmem_space.views.plan import floor_view, limits_view, offers_view, plans_view
from trainmem_space.views.verdict import error_line
from trainmem_space.views.wrong_address import address_view

__all__ = ["CSS", "build"]

CSS = files("trainmem_space").joinpath("static/fit.css").read_text(encoding="utf-8")

_FAILED = "trainmem failed on this; please report the settings and the log."
_WAITING = '<p class="tm-note">Working out what fits …</p>'

_log = logging.getLogger(__name__)

_Answer = Callable[..., Any]


def build(shell: Shell) -> None:
    """Lay the tab out and connect it. Nothing is worked out until the tab is opened."""
    with gr.Column(elem_classes="tm-page"):
        with gr.Row(elem_classes=["tm-toggles", "tm-fit-controls"]):
            machine = gr.Dropdown(
                [(found.title.removeprefix("NVIDIA "), found.name) for found in devices() if found.cuda],
                value=DEFAULT_JOB.device,
                label="Device",
                filterable=False,
                elem_id="fit-device",
            )
            batch = gr.Number(PAGE.micro_batch, label="Micro batch", elem_id="fit-batch")
            length = gr.Number(PAGE.sequence_length, label="Sequence length", elem_id="fit-length")
            budget = gr.Textbox(
                label="Budget",
                placeholder="its own, or e.g. 118GiB",
                max_lines=1,
                elem_id="fit-budget",
            )
            checkpointing = gr.Radio(
                ["none", "full"], value=PAGE.checkpointing, label="Checkpointing", elem_id="fit-checkpointing"
            )
            curve = gr.Dropdown(
                [(found.title, found.key) for found in FAMILIES],
                value=DEFAULT_FAMILY,
                label="Family",
                filterable=False,
                elem_id="fit-family",
            )
        address_view(shell, elem_id="fit-address")
        error = view(elem_id="fit-error")
        page = view(_WAITING, elem_id="fit", script="breakdown")
        about = view(elem_id="fit-job")
    controls = [machine, budget, batch, length, checkpointing, curve]
    quick: dict[str, Any] = {
        "queue": False,
        "show_progress": "hidden",
        "trigger_mode": "always_last",
        "api_visibility": "private",
    }
    # The Calculator's job as it was when this tab was opened, by a click or by the page's address.
    job = gr.State(None)
    inputs = [job, *controls]

    def follow(event: Any, ask: Callable[[_Answer], _Answer] = lambda answer: answer) -> None:
        """After the page the job's part, before and after the allocator was asked about it."""
        event.then(ask(_job_now), inputs, about, **quick).then(ask(_job_settled), inputs, about, **quick)

    # Not a Textbox's ``input``: Gradio 6.31 drops its first. Nor the device's: opening the tab sets it.
    changing = (budget, machine)
    moved = [control.change if control in changing else control.input for control in controls]
    follow(gr.on(moved, _page_now, inputs, [error, page], **quick))
    selected = shell.tab.select(_selected, shell.job, [job, machine], **quick)
    follow(selected.then(_on_its_device(_page_now), inputs, [error, page], **quick), _on_its_device)
    opened = shell.demo.load(_opened, None, [job, machine], **quick)
    follow(opened.then(_on_its_device(_page_now), inputs, [error, page], **quick), _on_its_device)


def _on_its_device(answer: _Answer) -> _Answer:
    """``answer`` for the device of the job, whatever the control shows.

    Opening the tab sets the control, and the browser may still send what it showed before.
    """

    @wraps(answer)
    def asked(data: dict[str, Any] | None, machine: str, *settings: Any) -> Any:
        if data is not None:
            found = device(TrainingJob.from_json(data).device)
            machine = found.name if found.cuda else machine
        return answer(data, machine, *settings)

    return asked


def _selected(data: dict[str, Any] | None) -> list[Any]:
    """The tab was opened: it follows the Calculator's job and device."""
    job = TrainingJob.from_json(data) if data else DEFAULT_JOB
    found = device(job.device)
    return [job.to_json(), found.name if found.cuda else gr.skip()]


def _opened(request: gr.Request) -> list[Any]:
    """The page's address opens this tab: the job is in the address too."""
    if tab_of(request) != "fit":
        return [gr.skip(), gr.skip()]
    try:
        job = job_of(request)
    except ValueError:
        job = None
    return _selected(job.to_json() if job else None)


def _page_now(data: dict[str, Any] | None, *settings: Any) -> list[Any]:
    """The error line and the page; wrong input changes the error line alone."""
    if data is None:
        return [gr.skip(), gr.skip()]
    try:
        return [error_line(None), page_view(_fits(*_asked(settings)))]
    except ValueError as error:
        return [error_line(str(error)), gr.skip()]
    except Exception:
        _log.exception("what fits failed")
        return [error_line(_FAILED), gr.skip()]


def _job_now(data: dict[str, Any] | None, *settings: Any) -> Any:
    return _quietly(data, lambda job: _job(_asked(settings)[0], job, "fast"))


def _job_settled(data: dict[str, Any] | None, *settings: Any) -> Any:
    return _quietly(data, lambda job: _job(_asked(settings)[0], job, "exact"))


def _quietly(data: dict[str, Any] | None, show: Callable[[TrainingJob], Any]) -> Any:
    """What ``show`` makes of the job; nothing changes where it cannot: the error line has said why."""
    if data is None:
        return gr.skip()
    try:
        return show(TrainingJob.from_json(data))
    except ValueError:
        return gr.skip()
    except Exception:
        _log.exception("what fits failed")
        return gr.skip()


def _asked(settings: tuple[Any, ...]) -> tuple[Room, TrainingJob, str]:
    """The room, the batch and length asked about, and the family. Raises `ValueError`, one line."""
    machine, budget, batch, length, checkpointing, curve = settings
    like = TrainingJob(
        model=family(curve).members[0],
        micro_batch="" if batch is None else batch,
        sequence_length="" if length is None else length,
        checkpointing=checkpointing,
    )
    return room(machine, budget), like, curve


@lru_cache(maxsize=64)
def _fits(at: Room, like: TrainingJob, curve: str) -> WhatFits:
    return what_fits(at, like, family=curve)


@lru_cache(maxsize=64)
def _job(at: Room, job: TrainingJob, detail: Detail) -> str:
    job = job.with_(device=at.device.name)
    can_replay = replayable(job.with_(accumulation=min(job.accumulation, 2)))
    is_early = can_replay and detail == "fast"
    detail = detail if can_replay else "fast"
    found = plans(job, at, detail)
    # The whiteboard's sum is all that there will be of a model that the tape does not know.
    is_checking = is_early and found.engine == "tape"
    parts = [
        plans_view(found, described(job, None), detail, is_checking=is_checking),
        floor_view(step_floor(job), measured_fraction(job), at.name),
        offers_view(rent_or_own(job, detail), is_checking=is_checking),
    ]
    if detail == "exact":
        # Limits ask a dozen times for each configuration, and a rank's step is put together each time: the bound then.
        sharded = job.sharding.mode != "none"
        how: Detail = "fast" if sharded else "exact"
        is_bound = sharded and (found.sum is None or found.sum.over_ranks)
        doubt = "" if is_bound else limits_doubt(found)
        parts.insert(1, limits_view(job, limits_of(job, at, how), how, doubt))
    return "".join(parts)
