"""Calculator: every lever on the left, the verdict and what it is made of on the right, live."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any

import gradio as gr

from trainmem.device import device, devices
from trainmem.hub import fetch_config, is_hub_id
from trainmem.job import TrainingJob
from trainmem_space import answers
from trainmem_space.address import anchor, job_of, tab_of
from trainmem_space.charts.text import prose
from trainmem_space.levers import FORM, PASTED, form_from_job, job_from_form, lever_of_error
from trainmem_space.pins import STORAGE_KEY, STORAGE_SECRET, from_browser, to_browser
from trainmem_space.session import Session
from trainmem_space.shell import Shell
from trainmem_space.views import view
from trainmem_space.views.breakdown import breakdown_view
from trainmem_space.views.comparison import capacity_lines, comparison_view, described
from trainmem_space.views.step import step_view
from trainmem_space.views.verdict import error_line, verdict_view
from trainmem_space.views.wrong_address import address_line
from trainmem_space.words import in_words

__all__ = ["DEFAULT_JOB", "build"]

DEFAULT_JOB = TrainingJob(model="llama3.2-1b", micro_batch=8, sequence_length=2048)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Page:
    """The tab's components, by what they show."""

    form: dict[str, gr.components.Component]
    error: gr.HTML
    verdict: gr.HTML
    bars: gr.HTML
    breakdown: gr.HTML
    step: gr.HTML
    link: gr.HTML
    session: gr.State
    job: gr.State
    pins: gr.BrowserState

    @property
    def answer(self) -> list[gr.components.Component]:
        return [self.error, self.verdict, self.bars, self.breakdown, self.link, self.job, self.session]


def build(shell: Shell) -> None:
    """Lay the tab out and connect it."""
    session = Session()
    session.show(DEFAULT_JOB)
    first = _shown(session, DEFAULT_JOB, "exact")
    with gr.Row(elem_classes="tm-calculator"):
        with gr.Column(elem_classes="tm-top"):
            error = view(elem_id="error")
            verdict = view(first[0], elem_id="verdict", script="actions")
            view(
                '<button type="button" class="tm-fold-levers" aria-expanded="false" aria-controls="form">'
                "Change the job</button>",
                elem_id="fold",
            )
        with gr.Column(elem_classes="tm-form", elem_id="form"):
            form = _form(form_from_job(DEFAULT_JOB))
            hints = json.dumps({key: lever.moves for key, lever in FORM.items()})
            view(
                f'<p class="tm-hint" data-hints="{escape(hints)}"><b>What a lever moves</b> '
                "<span>Choose one to see.</span></p>",
                elem_id="hint",
            )
        with gr.Column(elem_classes="tm-answer"):
            bars = view(first[1], elem_id="bars", script="actions")
            breakdown = view(first[2], elem_id="breakdown", script="breakdown")
            link = view(first[3], elem_id="link", script="address")
            step = view(_step(DEFAULT_JOB), elem_id="step")
    page = _Page(
        form=form,
        error=error,
        verdict=verdict,
        bars=bars,
        breakdown=breakdown,
        step=step,
        link=link,
        session=gr.State(session),
        job=shell.job,
        pins=gr.BrowserState([], storage_key=STORAGE_KEY, secret=STORAGE_SECRET),
    )
    _connect(page, shell)


def _form(values: dict[str, Any]) -> dict[str, gr.components.Component]:
    controls: dict[str, gr.components.Component] = {}

    def add(key: str, **settings: Any) -> None:
        lever = FORM[key]
        common = {"label": lever.label, "value": values[key], "elem_id": f"lever-{key}", "min_width": 60}
        if lever.values is None:
            controls[key] = gr.Number(**common, **settings)
        elif len(lever.values) <= 3:
            controls[key] = gr.Radio(lever.choices, **common, **settings)
        else:
            controls[key] = gr.Dropdown(lever.choices, filterable=False, **common, **settings)

    controls["model"] = gr.Dropdown(
        answers.model_names(),
        value=values["model"],
        label=FORM["model"].label,
        info="Choose, or type a Hugging Face id (owner/name)",
        allow_custom_value=True,
        elem_id="lever-model",
    )
    with gr.Accordion("Paste a config.json", open=False, elem_classes="tm-fold"):
        controls["config"] = gr.Textbox(
            values["config"],
            label=FORM["config"].label,
            show_label=False,
            lines=4,
            max_lines=12,
            placeholder='{"model_type": "llama", "hidden_size": 2048, ...}',
            elem_id="lever-config",
        )
    controls["device"] = gr.Dropdown(
        [(machine.title.removeprefix("NVIDIA "), machine.name) for machine in devices()],
        value=values["device"],
        label=FORM["device"].label,
        elem_id="lever-device",
    )
    with gr.Row(elem_classes="tm-three"):
        for key in ("micro_batch", "sequence_length", "accumulation"):
            add(key)
    for key in ("precision", "optimizer", "checkpointing", "attention", "loss", "lora"):
        add(key)
    adapted = values["lora"] == "on"
    with gr.Row(visible=adapted, elem_classes="tm-three") as adapters:
        add("lora_rank")
        controls["lora_targets"] = gr.Dropdown(
            [("all linear", "all-linear"), ("query, value", "q_proj, v_proj")],
            value=values["lora_targets"],
            label=FORM["lora_targets"].label,
            allow_custom_value=True,
            elem_id="lever-lora_targets",
            min_width=60,
        )
    add("base_quantization", visible=adapted)
    controls["lora"].change(
        lambda on: [gr.Row(visible=on == "on"), gr.Radio(visible=on == "on")],
        controls["lora"],
        [adapters, controls["base_quantization"]],
        queue=False,
        show_progress="hidden",
        api_visibility="private",
    )
    for key in ("zero_grad", "task"):
        add(key)
    with gr.Accordion("Cluster", open=False, elem_classes="tm-fold"):
        for key in ("sharding_mode", "sharding_data_parallel", "sharding_tensor_parallel"):
            add(key)
        add("sharding_pipeline_parallel")
        controls["sharding_reshard_after_forward"] = gr.Checkbox(
            values["sharding_reshard_after_forward"],
            label=FORM["sharding_reshard_after_forward"].label,
            elem_id="lever-sharding_reshard_after_forward",
        )
        add("sharding_offload")
    return {key: controls[key] for key in FORM}


def _connect(page: _Page, shell: Shell) -> None:
    controls = list(page.form.values())
    quick: dict[str, Any] = {
        "queue": False,
        "show_progress": "hidden",
        "trigger_mode": "always_last",
        "api_visibility": "private",
    }
    exact: dict[str, Any] = {
        "fn": _exact,
        "inputs": [page.session],
        "outputs": [page.verdict, page.bars, page.breakdown, page.step],
        **quick,
    }
    others = [control.input for key, control in page.form.items() if key not in ("model", "config")]
    gr.on(others, _moved, [page.session, *controls], page.answer, **quick).then(**exact)
    gr.on(
        [page.form["model"].input],
        _named,
        [page.session, *controls],
        [page.form["config"], page.form["task"], *page.answer],
        **quick,
    ).then(**exact)
    gr.on(
        # Not ``input``: Gradio 6.31 drops a Textbox's first, which is the paste.
        [page.form["config"].change],
        _pasted,
        [page.session, *controls],
        [page.form["model"], *page.answer],
        **quick,
    ).then(**exact)
    gr.on(
        [page.verdict.click, page.bars.click],
        _pressed,
        [page.session],
        [page.pins, *controls, *page.answer],
        **quick,
    ).then(**exact)
    shell.demo.load(_opened, page.pins, [shell.tabs, *controls, *page.answer], **quick).then(**exact)


Views = tuple[str, str, str, str]


def _shown(session: Session, job: TrainingJob, detail: answers.Detail) -> Views:
    """The verdict, the bars, the table and the link for a job. Raises `ValueError` for one that cannot be."""
    estimate = answers.answer(job, detail).to_json()
    return (
        verdict_view(
            estimate,
            answers.verdict_on(job, detail),
            described=described(job, None),
            detail=detail,
            plan=anchor(job, "What several together would do", tab="fit"),
        ),
        comparison_view(session, job, detail),
        breakdown_view(estimate, answers.board(job)),
        f'<p class="tm-actions">{anchor(job, "Link to this scenario")}</p>',
    )


def _step(job: TrainingJob) -> str:
    limit = next((line for line in capacity_lines(job.device) if line.chosen), None)
    try:
        return step_view(answers.one_step(job), limit)
    except ValueError as error:
        return f'<h2>One step</h2><p class="tm-note">{prose(in_words(str(error)))}.</p>'


def _answered(session: Session, find: Callable[[], TrainingJob], *, address: bool = False) -> list[Any]:
    """The answer's outputs for the job that ``find`` returns; wrong input changes the error line, and leaves the
    answer that stood before it was typed.

    ``address``: the job is that of the page's address, so no control holds what is wrong.
    """
    try:
        job = find()
        # whatever can fail does so before the scenario counts as shown
        answers.answer(job, "fast")
        answers.verdict_on(job, "fast")
        answers.board(job)
        session.show(job)
        return [error_line(None), *_shown(session, job, "fast"), job.to_json(), session]
    except ValueError as error:
        message = str(error)
    except Exception:
        _log.exception("no answer")
        message, address = "trainmem failed on this job; please report the link and the log.", False
    lever = None if address else lever_of_error(message)
    said = error_line(message, lever, address=address)
    before = session.before_typing(FORM[lever].field) if lever else None
    if before is None:
        return [said, *[gr.skip()] * 6]
    session.show(before)
    return [said, *_shown(session, before, "fast"), before.to_json(), session]


def _good(found: list[Any]) -> bool:
    return found[0] == error_line(None)


def _form_values(values: tuple[Any, ...]) -> dict[str, Any]:
    """The controls' values by name. What a forged request puts in place of text is no text."""
    form = dict(zip(FORM, values, strict=True))
    return form | {key: form[key] if isinstance(form[key], str) else "" for key in ("model", "config")}


def _moved(session: Session, *values: Any) -> list[Any]:
    return _answered(session, lambda: _job(_form_values(values)))


def _job(form: dict[str, Any]) -> TrainingJob:
    return job_from_form(form)


def _named(session: Session, *values: Any) -> list[Any]:
    """A model was chosen or typed: one of the catalogue drops the pasted config, a Hub id fetches one."""
    form = _form_values(values)
    form["config"] = ""
    entry = answers.known_model(form["model"] or "")
    try:
        if entry is not None:
            form["task"] = entry.task
        elif is_hub_id(form["model"] or ""):
            form["config"] = json.dumps(fetch_config(form["model"]), indent=1)
    except ValueError as error:
        return [gr.skip(), gr.skip(), error_line(str(error), "model"), *[gr.skip()] * 6]
    found = _answered(session, lambda: _job(form))
    return [*([form["config"], form["task"]] if _good(found) else [gr.skip()] * 2), *found]


def _pasted(session: Session, *values: Any) -> list[Any]:
    """A config was pasted or emptied: it takes the model's place, or gives it back."""
    form = _form_values(values)
    if form["config"] == form_from_job(session.job)["config"]:
        return [gr.skip()] * 8
    form["model"] = PASTED if form["config"].strip() else session.named or DEFAULT_JOB.model
    found = _answered(session, lambda: _job(form))
    return [form["model"] if _good(found) or _is_object(form["config"]) else gr.skip(), *found]


def _is_object(text: str) -> bool:
    """Whether a config stands in the box, whatever else the form lacks."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _pressed(session: Session, event: gr.EventData) -> list[Any]:
    """A button inside the answer: apply the cheapest lever, pin, restore, let one go or all."""
    pressed = event._data if isinstance(event._data, dict) else {}
    action, index = pressed.get("action"), pressed.get("index")
    index = index if isinstance(index, int) else -1
    target = session.job or DEFAULT_JOB
    if action == "apply":
        lever = answers.verdict_on(target, "exact").cheapest_lever
        target = lever[1] if lever else target
    elif action == "restore" and 0 <= index < len(session.pins):
        target = session.pins[index]
    elif action == "pin":
        session.pin()
    elif action == "unpin":
        session.unpin(index)
    elif action == "unpin-all":
        session.pins.clear()
    kept = to_browser(session.pins) if action in ("pin", "unpin", "unpin-all") else gr.skip()
    # a pin changes no lever: what stands in the form, finished or not, stays there
    same = target == session.job
    controls = [gr.skip()] * len(FORM) if same else _controls(target)
    found = _answered(session, lambda: target)
    return [kept, *controls, *([gr.skip(), *found[1:]] if same else found)]


def _controls(job: TrainingJob) -> list[Any]:
    form = form_from_job(job) | {"device": device(job.device).name}
    return [form[key] for key in FORM]


def _opened(stored: object, request: gr.Request) -> list[Any]:
    """The page was opened: show the scenario of its address, or a line that says why not, and the pins kept."""
    selected = gr.Tabs(selected=tab_of(request)) if tab_of(request) else gr.skip()
    session = Session(pins=from_browser(stored))
    said = address_line(request)
    try:
        job = job_of(request)
    except ValueError:
        job = None
    if job is not None:
        found = _answered(session, lambda: job, address=True)
        if session.job is not None:
            return [selected, *_controls(job), said, *found[1:]]
        said = found[0]
    return [selected, *[gr.skip()] * len(FORM), said, *_first_with(session)]


def _first_with(session: Session) -> list[Any]:
    """The rest of the answer for the scenario that the page opens with: it stands there already, but for pins."""
    if not session.pins:
        return [gr.skip()] * 6
    session.show(DEFAULT_JOB)
    bars = comparison_view(session, DEFAULT_JOB, "exact")
    return [gr.skip(), bars, *[gr.skip()] * 3, session]


def _exact(session: Session) -> list[Any]:
    """The exact answer for the scenario shown, unless another one has been shown meanwhile."""
    job, serial = session.job, session.serial
    try:
        views = [*_shown(session, job, "exact")[:3], _step(job)]
    except Exception:
        # The fast answer stands on the page; an error here would only cover it.
        _log.exception("no exact answer")
        note = (
            '<h2>One step</h2><p class="tm-note">This job could not be replayed; the figures above hold.</p>'
        )
        return [*[gr.skip()] * 3, note]
    return views if session.serial == serial else [gr.skip()] * 4
