"""The page's address holds the scenario, and the tab when it is not the first one."""

from __future__ import annotations

from html import escape
from typing import Any
from urllib.parse import urlencode

import gradio as gr

from trainmem.device import device
from trainmem.job import JobError, TrainingJob
from trainmem.permalink import decode, encode

__all__ = ["anchor", "current_job", "job_of", "link_to", "tab_of", "unknown_device"]

_OURS = ("tab", "question", "__theme")
_ADDED_BY_OTHERS = ("utm_", "fbclid", "gclid", "msclkid", "mc_", "ref", "source", "__")
"""How the names begin that mail programs, search engines and social networks add to a link."""


def job_of(request: gr.Request) -> TrainingJob | None:
    """The job in the page's address, None when it names none. Raises `ValueError` for a wrong one.

    A device that nobody knows is left out, so that the job is shown on the default one: `unknown_device` says so.
    """
    query = [
        (key, value) for key, value in _given(request) if key != "device" or _device_error(value) is None
    ]
    return decode(urlencode(query)) if query else None


def unknown_device(request: gr.Request) -> str | None:
    """What is wrong with the device in the page's address, in one line; None where it is known, or none given."""
    errors = (_device_error(value) for key, value in _given(request) if key == "device")
    return next((error for error in errors if error is not None), None)


def _given(request: gr.Request) -> list[tuple[str, str]]:
    """What the address says of the job."""
    given = request.query_params.multi_items()
    return [(key, value) for key, value in given if key not in _OURS and not key.startswith(_ADDED_BY_OTHERS)]


def _device_error(name: str) -> str | None:
    try:
        device(name)
    except JobError as error:
        return str(error)
    return None


def current_job(data: dict[str, Any] | None, request: gr.Request, default: TrainingJob) -> TrainingJob:
    """The Calculator's job from its shared state; before it has one, that of the address, or ``default``.

    Raises `ValueError` for a wrong address: the Calculator has none then, and another tab must not show another
    job as if it were the one asked for.
    """
    return TrainingJob.from_json(data) if data else job_of(request) or default


def tab_of(request: gr.Request) -> str | None:
    """The tab that the address asks for."""
    return request.query_params.get("tab")


def anchor(job: TrainingJob, text: str, kind: str = "", *, tab: str | None = None) -> str:
    """A link that opens a scenario, on ``tab`` or the first one, or the line that says why there is none."""
    try:
        return f'<a class="{kind}" href="{escape(link_to(job, tab))}">{escape(text)}</a>'
    except JobError as error:
        return f'<span class="tm-note">No link to this scenario: {escape(str(error))}.</span>'


def link_to(job: TrainingJob, tab: str | None = None) -> str:
    """The address of a scenario, relative to the page. Raises `JobError` for one too large for a link."""
    return f"?{encode(job)}" if tab is None else f"?{encode(job)}&tab={tab}"
