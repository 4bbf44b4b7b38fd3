"""What is wrong with the job in the page's address: one line, on every tab that shows that job."""

from __future__ import annotations

from typing import Any

import gradio as gr

from trainmem.device import device
from trainmem.job import TrainingJob
from trainmem_space.address import job_of, unknown_device
from trainmem_space.shell import Shell
from trainmem_space.views import view
from trainmem_space.views.verdict import error_line

__all__ = ["address_line", "address_view"]


def address_line(request: gr.Request) -> str:
    """The line as an `error_line`; empty where all is well."""
    wrong_device = unknown_device(request)
    try:
        job_of(request)
    except ValueError as error:
        return error_line(wrong_device or str(error), address=True)
    if wrong_device is None:
        return ""
    shown = device(TrainingJob(model="any").device).title
    return error_line(f"{wrong_device}; shown for {shown} instead", address=True, answered=True)


def address_view(shell: Shell, *, elem_id: str) -> None:
    """A place for the line in the tab being built: there until the reader has gone on to another job."""
    line, told = view(elem_id=elem_id), gr.State(None)
    quick: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
    shell.demo.load(_opened, None, [line, told], **quick)
    shell.tab.select(_selected, [shell.job, told], line, **quick)


def _opened(request: gr.Request) -> tuple[str, Any]:
    """The line, and the job it is about: False where the address has none, None where there is nothing to tell."""
    line = address_line(request)
    if not line:
        return "", None
    try:
        asked = job_of(request)
    except ValueError:
        return line, False
    return line, asked.to_json() if asked else False


def _selected(data: dict[str, Any] | None, told: Any) -> Any:
    # By now the page's address is that of the job shown, so it does not say again what was wrong.
    return "" if told is not None and data and data != told else gr.skip()
