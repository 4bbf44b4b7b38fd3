"""The page's address holds the scenario, and the tab when it is not the first one."""

from __future__ import annotations

from urllib.parse import urlencode

import gradio as gr

from trainmem.job import TrainingJob
from trainmem.permalink import decode, encode

__all__ = ["job_of", "link_to", "tab_of"]

_OURS = ("tab", "question", "__theme")
_ADDED_BY_OTHERS = ("utm_", "fbclid", "gclid", "msclkid", "mc_", "ref", "source", "__")
"""How the names begin that mail programs, search engines and social networks add to a link."""


def job_of(request: gr.Request) -> TrainingJob | None:
    """The job in the page's address, None when it names none. Raises `ValueError` for a wrong one."""
    given = request.query_params.multi_items()
    query = [
        (key, value) for key, value in given if key not in _OURS and not key.startswith(_ADDED_BY_OTHERS)
    ]
    return decode(urlencode(query)) if query else None


def tab_of(request: gr.Request) -> str | None:
    """The tab that the address asks for."""
    return request.query_params.get("tab")


def link_to(job: TrainingJob) -> str:
    """The address of a scenario, relative to the page."""
    return f"?{encode(job)}"
