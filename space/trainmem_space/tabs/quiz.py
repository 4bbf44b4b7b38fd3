"""Quiz: one question on the screen. Keys come from trainmem, progress stays in the visitor's browser."""

from __future__ import annotations

import json
import logging
import secrets
import time
from dataclasses import dataclass
from datetime import UTC, date, datetime
from html import escape
from importlib.resources import files
from typing import Any

import gradio as gr

from trainmem.quiz import (
    EMPTY,
    ChoiceKey,
    Grade,
    Progress,
    ProgressError,
    Question,
    Rubric,
    Run,
    cited,
    grade,
    grade_spoken,
    sheet,
    skipped,
    start,
)
from trainmem_space.shell import Shell
from trainmem_space.views import view
from trainmem_space.views.quiz import Shown, end_view, menu_view, question_view, waiting_view

__all__ = ["CSS", "build"]

CSS = files("trainmem_space").joinpath("static/quiz.css").read_text(encoding="utf-8")

STORAGE_KEY = "trainmem-quiz-v1"
# Only scrambles what is stored, so that progress survives a restart of the server.
STORAGE_SECRET = "trainmem-quiz"

_SEEDS = 10**6
_ANSWERS = ("answer", "choose", "ticked", "skip")
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Quiz:
    """What one open page is doing; it ends with the page."""

    run: Run | None = None
    question: Question | None = None
    grade: Grade | None = None
    answer: str = ""
    chosen: int | None = None
    revealed: bool = False
    asked_at: float = 0.0
    total: int = 0


def build(shell: Shell) -> None:
    """Lay the tab out and connect it.

    The script says when the tab has appeared: only then has the browser read what it keeps.
    """
    stored = gr.BrowserState(EMPTY.to_json(), storage_key=STORAGE_KEY, secret=STORAGE_SECRET)
    state = gr.State(Quiz())
    with gr.Column(elem_classes="tm-page"):
        screen = view(waiting_view(), elem_id="quiz", script="quiz")
        file = view("", elem_id="quiz-file", script="quiz_file")
    quick: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
    screen.click(_pressed, [state, stored], [screen, file, state, stored], **quick)


def _today() -> date:
    # one day for everybody, wherever they are
    return datetime.now(UTC).date()


def _progress(stored: object) -> tuple[Progress, str]:
    if stored is None:
        return EMPTY, ""
    try:
        return Progress.from_json(stored), ""
    except ProgressError as error:
        return EMPTY, f"What this browser had stored could not be read ({error}); it starts anew."


def _pressed(quiz: Quiz, stored: object, event: gr.EventData, request: gr.Request) -> list[Any]:
    """Anything was pressed, typed or ticked, or the tab has just appeared."""
    pressed: dict[str, Any] = event._data or {}
    progress, note = _progress(stored)
    try:
        if pressed.get("action") == "arrived":
            return _arrived(quiz, progress, note, request.query_params.get("question"))
        return _answer(quiz, progress, note, pressed)
    except ValueError as error:
        return [menu_view(progress, _today(), note=str(error)), gr.skip(), Quiz(), gr.skip()]
    except Exception:
        _log.exception("the quiz failed")
        text = "trainmem failed on this question; your progress is kept. Please report the log."
        return [menu_view(progress, _today(), note=text), gr.skip(), Quiz(), gr.skip()]


def _arrived(quiz: Quiz, progress: Progress, note: str, question: str | None) -> list[Any]:
    """The question that the address cites, or the menu, now that the browser has said what it keeps."""
    if question is None:
        return [menu_view(progress, _today(), note=note), gr.skip(), quiz, gr.skip()]
    try:
        return [_begin(quiz, cited(question, day=_today())), gr.skip(), quiz, gr.skip()]
    except ValueError as error:
        return [menu_view(progress, _today(), note=f"address: {error}"), gr.skip(), quiz, gr.skip()]


def _answer(quiz: Quiz, progress: Progress, note: str, pressed: dict[str, Any]) -> list[Any]:
    action = pressed.get("action")
    if action == "start":
        mode, topic = pressed.get("mode"), pressed.get("topic")
        run = start(mode, secrets.randbelow(_SEEDS), day=_today(), progress=progress, topic=topic)
        return [_begin(quiz, run), gr.skip(), quiz, gr.skip()]
    if action in ("menu", "wipe"):
        quiz.run = None
        menu = menu_view(progress, _today(), note=note, wiping=action == "wipe")
        return [menu, gr.skip(), quiz, gr.skip()]
    if action == "wipe-yes":
        menu = menu_view(EMPTY, _today(), note="Forgotten.")
        return [menu, gr.skip(), quiz, EMPTY.to_json()]
    if action == "export":
        name = f"trainmem-quiz-{_today().isoformat()}.json"
        return [gr.skip(), _file(name, json.dumps(progress.to_json()), "application/json"), quiz, gr.skip()]
    if action == "import":
        return _import(quiz, progress, str(pressed.get("text", "")))
    if action == "sheet":
        seed = secrets.randbelow(1000)
        return [gr.skip(), _file(f"trainmem-sheet-{seed}.md", sheet(seed), "text/markdown"), quiz, gr.skip()]
    if quiz.run is None or quiz.question is None:
        lost = "The server was restarted meanwhile; your answers are kept. Start again."
        return [menu_view(progress, _today(), note=lost), gr.skip(), quiz, gr.skip()]
    if action == "time-up":
        quiz.run.items = []
        return [end_view(quiz.run), gr.skip(), quiz, gr.skip()]
    if action == "reveal":
        quiz.revealed = True
    elif action == "next" and quiz.grade is not None:
        return [_next(quiz), gr.skip(), quiz, gr.skip()]
    elif action in _ANSWERS and (quiz.grade is None or quiz.grade.verdict == "unreadable"):
        return _judge(quiz, quiz.question, progress, pressed)
    return [_shown(quiz), gr.skip(), quiz, gr.skip()]


def _begin(quiz: Quiz, run: Run) -> str:
    quiz.run, quiz.total = run, len(run.items)
    run.started_at = time.monotonic()
    return _next(quiz)


def _next(quiz: Quiz) -> str:
    assert quiz.run is not None
    item = quiz.run.current
    left = quiz.run.remaining_seconds(time.monotonic())
    if item is None or (left is not None and left <= 0):
        return end_view(quiz.run)
    quiz.question, quiz.grade, quiz.answer = item.question(), None, ""
    quiz.chosen, quiz.revealed, quiz.asked_at = None, False, time.monotonic()
    return _shown(quiz)


def _judge(quiz: Quiz, question: Question, progress: Progress, pressed: dict[str, Any]) -> list[Any]:
    """Grade what was given, take it down, and show the sum."""
    found = _grade(quiz, question, pressed)
    quiz.grade = found
    now = time.monotonic()
    assert quiz.run is not None
    attempt = quiz.run.record(found, now=now, seconds=now - quiz.asked_at)
    kept = gr.skip() if attempt is None else progress.with_(attempt).to_json()
    return [_shown(quiz), gr.skip(), quiz, kept]


def _grade(quiz: Quiz, question: Question, pressed: dict[str, Any]) -> Grade:
    action, key = pressed.get("action"), question.key
    if action == "ticked" and isinstance(key, Rubric):
        said, added = (
            [i for i in pressed.get(name) or () if isinstance(i, int)] for name in ("said", "added")
        )
        return grade_spoken(key, said, added, pressed.get("avoided") is True)
    if action == "choose" and isinstance(key, ChoiceKey):
        index = pressed.get("index")
        quiz.chosen = index if isinstance(index, int) else None
        return grade(question, str((quiz.chosen if quiz.chosen is not None else -2) + 1))
    if action == "answer" and not isinstance(key, Rubric):
        quiz.answer = str(pressed.get("text", ""))[:100]
        return grade(question, quiz.answer)
    return skipped(question)


def _shown(quiz: Quiz) -> str:
    assert quiz.run is not None
    assert quiz.question is not None
    done = quiz.grade is not None and quiz.grade.verdict != "unreadable"
    return question_view(
        Shown(
            question=quiz.question,
            number=len(quiz.run.grades) + (not done),
            total=None if quiz.run.mode == "interview" else quiz.total,
            left_seconds=quiz.run.remaining_seconds(time.monotonic()),
            grade=quiz.grade,
            answer=quiz.answer,
            chosen=quiz.chosen,
            revealed=quiz.revealed,
        )
    )


def _import(quiz: Quiz, progress: Progress, text: str) -> list[Any]:
    try:
        found = Progress.from_text(text)
    except ProgressError as error:
        note = f"Not imported. {error}"
        return [menu_view(progress, _today(), note=note), gr.skip(), quiz, gr.skip()]
    note = f"Imported {len(found.attempts):,} answers; they replace what was here."
    return [menu_view(found, _today(), note=note), gr.skip(), quiz, found.to_json()]


def _file(name: str, text: str, kind: str) -> str:
    # the time makes two equal files two events
    return (
        f'<pre data-name="{escape(name)}" data-type="{kind}" data-at="{time.time_ns()}">{escape(text)}</pre>'
    )
