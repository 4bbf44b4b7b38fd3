"""The web API: the same answers as ``trainmem estimate --json``, for programs."""

from __future__ import annotations

from typing import Any

import gradio as gr

from trainmem.job import TrainingJob
from trainmem_space import answers

__all__ = ["estimate", "register"]


def estimate(job: dict[str, Any]) -> dict[str, Any]:
    """Peak training memory of one job.

    Takes a job as a JSON object (missing keys take their defaults) and answers one `trainmem.estimate/1`
    object, or ``{"error": "field: value is not ..."}``.
    """
    try:
        return answers.answer(TrainingJob.from_json(job), "exact").to_json()
    except ValueError as error:
        return {"error": str(error)}


def register() -> None:
    """Add the endpoints to the app being built."""
    gr.api(estimate, api_name="estimate", queue=False)
