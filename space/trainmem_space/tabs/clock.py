"""One step on a clock: memory from the start of a step to its end, stepping through the named instants."""

from __future__ import annotations

from typing import Any

import gradio as gr

from trainmem.job import TrainingJob
from trainmem_space import answers
from trainmem_space.address import current_job
from trainmem_space.shell import Shell
from trainmem_space.tabs.calculator import DEFAULT_JOB
from trainmem_space.views import view
from trainmem_space.views.comparison import capacity_lines, described
from trainmem_space.views.step import clock_view
from trainmem_space.views.verdict import error_line
from trainmem_space.views.wrong_address import address_view

__all__ = ["build"]


def build(shell: Shell) -> None:
    """Lay the tab out and connect it."""
    with gr.Column(elem_classes="tm-page"):
        address_view(shell, elem_id="clock-address")
        about = view(_about(DEFAULT_JOB), elem_id="clock-job")
        with gr.Row(elem_classes="tm-toggles"):
            first_step = gr.Radio(
                [("a later step", False), ("the first step", True)],
                value=False,
                label="Step",
                elem_id="clock-step",
            )
            checkpointing = gr.Radio(
                [("as set", "as set"), ("none", "none"), ("full", "full")],
                value="as set",
                label="Checkpointing",
                elem_id="clock-checkpointing",
            )
        clock = view(_clock(DEFAULT_JOB, False, "as set"), elem_id="clock", script="clock")
    quick: dict[str, Any] = {
        "queue": False,
        "show_progress": "hidden",
        "trigger_mode": "always_last",
        "api_visibility": "private",
    }
    gr.on(
        [first_step.input, checkpointing.input, shell.tab.select],
        _turned,
        [shell.job, first_step, checkpointing],
        [about, clock],
        **quick,
    )
    # An address that opens this tab names the job too; the shared job may not have been set yet.
    shell.demo.load(_opened, None, [about, clock], **quick)


def _turned(
    data: dict[str, Any] | None, first_step: bool, checkpointing: str, request: gr.Request
) -> list[Any]:
    try:
        job = current_job(data, request, DEFAULT_JOB)
    except ValueError:
        return ["", ""]  # the line above says why
    try:
        return [_about(job), _clock(job, first_step, checkpointing)]
    except ValueError as error:
        return [_about(job), error_line(str(error))]


def _opened(request: gr.Request) -> list[Any]:
    return _turned(None, False, "as set", request) if request.query_params else [gr.skip(), gr.skip()]


def _clock(job: TrainingJob, first_step: bool, checkpointing: str) -> str:
    if checkpointing != "as set":
        job = job.with_(checkpointing=checkpointing)
    step = answers.one_step(job, first_step)
    limit = next((line for line in capacity_lines(job.device) if line.chosen), None)
    return clock_view(step, limit, answers.three_things(job))


def _about(job: TrainingJob) -> str:
    return f'<p class="tm-lead">The Calculator\'s job: {described(job, None)}.</p>'
