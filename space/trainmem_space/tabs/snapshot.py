"""Snapshot: a memory snapshot of one's own run, or an example, opened without trusting it."""

from __future__ import annotations

import os
import queue
import tempfile
import threading
from collections.abc import Callable, Iterator
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.utils import get_upload_folder

from trainmem.job import TrainingJob
from trainmem.predicted_snapshot import predicted_snapshot
from trainmem.snapshot.compare import compare
from trainmem.snapshot.examples import EXAMPLES, example_path
from trainmem.snapshot.page import render_comparison
from trainmem.snapshot.reader import SnapshotRejected
from trainmem.snapshot.service import Report, report_in_process
from trainmem.snapshot.summary import Summary, summary_of_estimate
from trainmem_space import answers
from trainmem_space.address import current_job
from trainmem_space.shell import Shell
from trainmem_space.tabs.calculator import DEFAULT_JOB
from trainmem_space.views import view
from trainmem_space.views.comparison import described
from trainmem_space.views.verdict import error_line

__all__ = ["CSS", "build"]

_SUMMARY_KEPT_SECONDS = 3600
_AT_ONCE = 2
"""Files read at the same time; each may take gigabytes while it is read."""

_STAGES = {
    "reading": "Reading it in a process of its own …",
    "understanding": "Replaying its events …",
    "drawing": "Drawing the report …",
}
_EXAMPLE_NAMES = {
    "amp": "Mixed precision",
    "ckpt": "Checkpointing",
    "oom": "Out of memory",
    "ring": "Ring overflow",
    "annot": "Named regions",
    "expandable": "Expandable segments",
    "graph": "CUDA graph",
    "allstacks": "C++ stacks",
}
_COMPARED_EXAMPLES = ("amp", "ckpt", "expandable")
_INTRODUCTION = (
    "<p>A file of <code>torch.cuda.memory._dump_snapshot</code>: pickle, gzip, JSON or PyTorch's HTML page, up to "
    "200 MB. It is opened in a confined process that can build plain data and nothing else, read once, and "
    "deleted. Larger files, and files that must not leave the machine: <code>trainmem snapshot FILE --html "
    "report.html</code>.</p>"
)
_EMPTY = (
    '<p class="tm-note">No snapshot yet. To record one: '
    "<code>torch.cuda.memory._record_memory_history()</code> before the model is built, a few steps, then "
    '<code>torch.cuda.memory._dump_snapshot("snapshot.pickle")</code>.</p>'
)

CSS = files("trainmem_space").joinpath("static/snapshot.css").read_text(encoding="utf-8")

Outputs = tuple[Any, ...]


def build(shell: Shell) -> None:
    """Lay the tab out and connect it."""
    view(_INTRODUCTION, elem_id="snapshot-introduction")
    with gr.Row(elem_classes="tm-snapshot-open"):
        upload = gr.File(
            label="Snapshot", elem_id="snapshot-file", type="filepath", file_count="single", height=150
        )
        with gr.Column(elem_classes="tm-snapshot-examples"):
            view('<p class="tm-note">or a real one</p>', elem_id="snapshot-or")
            with gr.Row(elem_classes="tm-snapshot-buttons"):
                examples = {
                    name: _button(title, f"snapshot-example-{name}") for name, title in _EXAMPLE_NAMES.items()
                }
    status = view(elem_id="snapshot-status")
    report = view(_EMPTY, elem_id="snapshot-report", script="snapshot")
    # Hidden by the style sheet until there is a report: what Gradio itself hides is not updated later.
    with gr.Column(elem_classes="tm-snapshot-compare"):
        view(
            "<h2>Compare</h2><p>What changed since the run before: another snapshot, or the prediction for the "
            "job of the Calculator. That job need not be the one that was recorded: set the Calculator to the "
            "file's model, batch and length first.</p>",
            elem_id="snapshot-compare-introduction",
        )
        with gr.Row(elem_classes="tm-snapshot-open"):
            other = gr.File(
                label="The run before",
                elem_id="snapshot-before",
                type="filepath",
                file_count="single",
                height=150,
            )
            with gr.Column(elem_classes="tm-snapshot-examples"):
                view('<p class="tm-note">or</p>', elem_id="snapshot-compare-or")
                with gr.Row(elem_classes="tm-snapshot-buttons"):
                    predicted = _button("Predicted by the Calculator", "snapshot-predicted")
                    other_examples = {
                        name: _button(_EXAMPLE_NAMES[name], f"snapshot-before-example-{name}")
                        for name in _COMPARED_EXAMPLES
                    }
        compare_status = view(elem_id="snapshot-compare-status")
        comparison = view(elem_id="snapshot-comparison", script="snapshot")
    current = gr.State(None, time_to_live=_SUMMARY_KEPT_SECONDS)

    opening = {
        "outputs": [status, report, current, compare_status, comparison, upload],
        "show_progress": "hidden",
        "concurrency_id": "snapshot",
        "concurrency_limit": _AT_ONCE,
        "api_visibility": "private",
    }
    upload.upload(_open_upload, [upload], **opening)
    for name, button in examples.items():
        button.click(_opener(name), None, **opening)
    setting = opening | {"outputs": [compare_status, comparison, other]}
    other.upload(_compare_upload, [other, current], **setting)
    for name, button in other_examples.items():
        button.click(_comparer(name), [current], **setting)
    predicted.click(_compare_prediction, [current, shell.job], **setting)


def _button(name: str, elem_id: str) -> gr.Button:
    return gr.Button(name, elem_id=elem_id, size="sm", min_width=40)


def _opener(name: str) -> Callable[[], Iterator[Outputs]]:
    def open_example() -> Iterator[Outputs]:
        yield from _open(str(example_path(name)), f"{_EXAMPLE_NAMES[name]}: {EXAMPLES[name]}")

    return open_example


def _open_upload(path: str | None) -> Iterator[Outputs]:
    if path:
        try:
            yield from _open(path, Path(path).name)
        finally:
            _forget(path)


def _open(path: str, name: str) -> Iterator[Outputs]:
    """Stages, then the report; or one line that says why not."""
    keep = gr.skip()
    for message in _reading(path, name):
        if isinstance(message, str):
            yield _stage(message), keep, keep, keep, keep, keep
        elif isinstance(message, SnapshotRejected):
            yield error_line(str(message)), _EMPTY, None, "", "", None
        else:
            yield (
                "",
                _framed(message.page, name),
                message.summary.to_json() if message.summary else None,
                "",
                "",
                None,
            )


def _comparer(name: str) -> Callable[[Any], Iterator[Outputs]]:
    def compare_example(current: Any) -> Iterator[Outputs]:
        yield from _compare(str(example_path(name)), _EXAMPLE_NAMES[name], current)

    return compare_example


def _compare_upload(path: str | None, current: Any) -> Iterator[Outputs]:
    if path:
        try:
            yield from _compare(path, Path(path).name, current)
        finally:
            _forget(path)


def _compare(
    path: str, name: str, current: Any, *, has_sites: bool = True, note: str = ""
) -> Iterator[Outputs]:
    keep = gr.skip()
    for message in _reading(path, name):
        if isinstance(message, str):
            yield _stage(message), keep, keep
        elif isinstance(message, SnapshotRejected):
            yield error_line(str(message)), "", None
        else:
            summary = message.summary
            yield (
                *_compared(
                    summary if has_sites or summary is None else summary.without_sites(), current, note
                ),
                None,
            )


def _compare_prediction(current: Any, job: Any, request: gr.Request) -> Iterator[Outputs]:
    """With the predicted step as a snapshot, where it is short enough to be replayed; else with its peak alone."""
    try:
        wanted = current_job(job, request, DEFAULT_JOB)
        if answers.replayable(wanted):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "predicted.pickle"
                path.write_bytes(predicted_snapshot(wanted))
                yield from _compare(
                    str(path), "predicted", current, has_sites=False, note=_of_the_job(wanted)
                )
            return
        estimate = answers.answer(wanted, "fast").to_json()
    except ValueError as error:
        yield error_line(str(error)), "", gr.skip()
        return
    before = summary_of_estimate(estimate, "predicted")
    yield *_compared(before, current, _of_the_job(wanted)), gr.skip()


def _of_the_job(job: TrainingJob) -> str:
    """Which job was predicted: nothing ties the Calculator's to the file."""
    told = escape(described(job, None))
    return (
        f'<p class="tm-note" role="status">Predicted: the Calculator\'s job, {told}. It need not be the job that '
        "the file recorded.</p>"
    )


def _compared(before: Summary | None, current: Any, note: str = "") -> tuple[str, str]:
    """Status and comparison; ``note`` is the status where there is one."""
    if not current:
        return error_line("Open a snapshot first; summaries are kept for an hour."), ""
    if before is None:
        return error_line("That file has no GPU memory to compare with."), ""
    comparison = compare(before, Summary.from_json(current))
    return note, _framed(render_comparison(comparison), f"comparison with {before.name}")


def _reading(path: str, name: str) -> Iterator[str | Report | SnapshotRejected]:
    """What `report_in_process` says it does, and at last what came of it."""
    said: queue.SimpleQueue[str | Report | SnapshotRejected] = queue.SimpleQueue()

    def work() -> None:
        try:
            said.put(report_in_process(path, name=name, progress=said.put))
        except SnapshotRejected as rejected:
            said.put(rejected)
        except Exception:
            said.put(SnapshotRejected("not opened: something went wrong on this side"))
            raise

    threading.Thread(target=work, daemon=True).start()
    while True:
        message = said.get()
        yield message
        if not isinstance(message, str):
            return


def _stage(stage: str) -> str:
    return f'<p class="tm-note" role="status">{escape(_STAGES.get(stage, stage))}</p>'


def _framed(page: str, title: str) -> str:
    """The page in a frame that shares nothing with this one: no origin, no cookies, no way to navigate."""
    return (
        f'<iframe class="tm-report" title="{escape(title)}" sandbox="allow-scripts allow-downloads" '
        f'referrerpolicy="no-referrer" srcdoc="{escape(page)}"></iframe>'
    )


def _forget(path: str) -> None:
    """Delete an upload, and the folder that Gradio made for it. Nothing outside the upload folder is touched."""
    folder = Path(get_upload_folder()).resolve()
    file = Path(path).resolve()
    if folder not in file.parents:
        return
    file.unlink(missing_ok=True)
    if file.parent != folder:
        try:
            os.rmdir(file.parent)
        except OSError:
            return
