"""Answers as HTML: plain functions from what trainmem computed to one string each."""

from __future__ import annotations

from importlib.resources import files

import gradio as gr

__all__ = ["view"]


def view(value: str = "", *, elem_id: str, script: str | None = None) -> gr.HTML:
    """A place for HTML made by the server. ``script`` names a file in static/ that runs inside it."""
    code = None
    if script is not None:
        code = files("trainmem_space").joinpath(f"static/{script}.js").read_text(encoding="utf-8")
    return gr.HTML(value, elem_id=elem_id, js_on_load=code, apply_default_css=False, elem_classes="tm-view")
