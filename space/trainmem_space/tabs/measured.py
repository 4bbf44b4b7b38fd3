"""Measured: published rows of real GPUs beside every prediction, each open to where it is from."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any

import gradio as gr

from trainmem.device import device
from trainmem.results import MeasuredRow, predictions
from trainmem.results.remote import current_rows
from trainmem.results.tables import machines_of, of_machine, one_machine, suites_of
from trainmem_space.address import tab_of
from trainmem_space.measured.curves import break_it, scaling
from trainmem_space.measured.errors import errors
from trainmem_space.measured.every import every_row
from trainmem_space.measured.lesson import lesson_table
from trainmem_space.measured.limits import limits
from trainmem_space.shell import Shell
from trainmem_space.views import view

__all__ = ["CSS", "build"]

CSS = files("trainmem_space").joinpath("static/measured.css").read_text(encoding="utf-8")

_EVERY = "every machine"
_WAITED_FOR = device("spark").title
"""Listed although no row of it is published yet: its tables say how to fill them."""


def build(shell: Shell) -> None:
    """Lay the tab out and connect it. Nothing is shown until the tab is opened."""
    with gr.Column(elem_classes="tm-page"):
        view(_origin(), elem_id="measured-origin")
        with gr.Row(elem_classes="tm-toggles"):
            machine = gr.Dropdown(
                _machines(), value=_EVERY, label="Machine", filterable=False, elem_id="measured-machine"
            )
        tables = view(elem_id="measured", script="measured")
        with gr.Row(elem_classes="tm-toggles"):
            suite = gr.Dropdown(
                suites_of(current_rows().rows), label="Suite", filterable=False, elem_id="measured-suite"
            )
        rows = view(elem_id="measured-rows")
    quick: dict[str, Any] = {
        "queue": False,
        "show_progress": "hidden",
        "trigger_mode": "always_last",
        "api_visibility": "private",
    }
    outputs = [tables, rows]
    gr.on([shell.tab.select, machine.input], _shown, [machine, suite], outputs, **quick)
    suite.input(_every, [machine, suite], rows, **quick)
    shell.demo.load(_opened, [machine, suite], outputs, **quick)


def _opened(machine: str, suite: str, request: gr.Request) -> list[Any]:
    # A tab that the address opens is selected without an event.
    return _shown(machine, suite) if tab_of(request) == "measured" else [gr.skip()] * 2


def _machines() -> list[str]:
    return [_EVERY, *dict.fromkeys([*machines_of(current_rows().rows), _WAITED_FOR])]


def _rows(machine: str) -> tuple[Sequence[MeasuredRow], str | None]:
    chosen = None if machine == _EVERY else machine
    return of_machine(current_rows().rows, chosen), chosen


def _shown(machine: str, suite: str) -> list[Any]:
    rows, chosen = _rows(machine)
    known = predictions()
    parts = (
        lesson_table(one_machine(rows, "lesson"), known, chosen),
        scaling(one_machine(rows, "scaling"), chosen),
        break_it(one_machine(rows, "break-it"), chosen),
        errors(rows, known),
        limits(rows, known, chosen),
        "<h2>Every row</h2>",
    )
    return ["".join(parts), every_row(rows, known, suite)]


def _every(machine: str, suite: str) -> str:
    rows, _ = _rows(machine)
    return every_row(rows, predictions(), suite)


def _origin() -> str:
    source = current_rows()
    note = f" ({escape(source.note)})" if source.note else ""
    return (
        f'<p class="tm-lead">{len(source.rows):,} rows measured on real GPUs, {escape(source.origin)}{note}. '
        "Predictions were made when the rows were published.</p>"
    )
