"""The web API: the same answers as ``trainmem estimate --json``, for programs."""

from __future__ import annotations

import logging
from typing import Any

import gradio as gr
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from starlette.routing import Route

from trainmem.job import TrainingJob
from trainmem_space import answers

__all__ = ["answer_the_page_about_it", "estimate", "register"]


_log = logging.getLogger(__name__)


def estimate(job: dict[str, Any]) -> dict[str, Any]:
    """Peak training memory of one job.

    Takes a job as a JSON object (missing keys take their defaults) and answers one `trainmem.estimate/1`
    object, or ``{"error": "field: value is not ..."}``.
    """
    try:
        return answers.answer(TrainingJob.from_json(job), "exact").to_json()
    except ValueError as error:
        return {"error": str(error)}
    except Exception:
        _log.exception("no answer")
        return {"error": "trainmem failed on this job; please report it"}


def register() -> None:
    """Add the endpoints to the app being built."""
    gr.api(estimate, api_name="estimate", queue=False)


_NOTHING: dict[str, Any] = {"/gradio_api/mcp/schema": [], "/monitoring/summary": {"functions": {}}}


def answer_the_page_about_it(app: FastAPI) -> None:
    """Tell Gradio's page "Use via API" that there are no tools of MCP and no monitoring.

    It asks for both whether they are on or not, and a refusal would stand as an error in the visitor's console.
    """
    for path, content in _NOTHING.items():
        app.router.routes.insert(0, Route(path, lambda _, content=content: JSONResponse(content)))
