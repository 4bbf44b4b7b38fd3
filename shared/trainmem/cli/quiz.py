"""`trainmem quiz`: practise the sum in the terminal, or print a sheet for someone who interviews."""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

from trainmem.cli.files import write_file
from trainmem.quiz import (
    EMPTY,
    INTERVIEW_SECONDS,
    MODES,
    TOPICS,
    ChoiceKey,
    Grade,
    Mode,
    NumericKey,
    Progress,
    Question,
    Rubric,
    Run,
    card,
    cited,
    grade,
    grade_spoken,
    share_text,
    sheet,
    skipped,
    start,
    tolerance_text,
)
from trainmem.quiz.as_json import SCHEMA, grade_json, question_json
from trainmem.quiz.card import LETTERS
from trainmem.quiz.chart_text import chart_text

__all__ = ["add_parser", "run"]

_LETTERS = "ABCDEFGHIJ"
_MOST_QUESTIONS = 60


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = subparsers.add_parser("quiz", description=__doc__)
    modes = [mode for mode in MODES if mode != "cited"]
    parser.add_argument("--mode", choices=modes, help="default five; topic needs --topic")
    parser.add_argument("--seed", type=int, help="the same seed asks the same questions")
    parser.add_argument("--topic", help=f"one of: {', '.join(TOPICS)}")
    parser.add_argument("--count", type=int, help="how many questions")
    parser.add_argument("--date", help="the day of --mode today, such as 2026-11-29; default today")
    parser.add_argument("--question", metavar="ID", help="one question by its name and seed: states.total~7")
    parser.add_argument(
        "--answer", help="judge this answer to --question and stop: 0 when it is right, 1 when not"
    )
    parser.add_argument(
        "--card", action="store_true", help="print the formulas to know first, and ask nothing"
    )
    parser.add_argument("--sheet", action="store_true", help="print a sheet with answers, as Markdown")
    parser.add_argument("--progress", type=Path, metavar="FILE", help="read and keep your history here")
    parser.add_argument("--json", action="store_true", help="one object with the questions and their keys")


def run(args: argparse.Namespace) -> int:
    """Ask, print or judge; 1 when a judged answer is not right."""
    seed = random.randrange(10**6) if args.seed is None else args.seed
    if args.count is not None and not 1 <= args.count <= _MOST_QUESTIONS:
        raise ValueError(f"count: {args.count} is not from 1 to {_MOST_QUESTIONS}")
    if args.topic is not None and (args.sheet or args.mode not in (None, "topic")):
        other = "--sheet" if args.sheet else f"--mode {args.mode}"
        raise ValueError(f"topic: {other} asks about every topic; leave --topic out, or use --mode topic")
    if args.card:
        _print_card(as_json=args.json)
        return 0
    if args.sheet:
        text = sheet(seed, args.count or 12)
        print(json.dumps({"schema": SCHEMA, "sheet": text, "seed": seed}) if args.json else text)
        return 0
    if args.answer is not None:
        return _judge(args)
    progress = _read(args.progress)
    questions = _chosen(args, seed, progress)
    if args.json:
        asked = [question_json(item.question()) for item in questions.items]
        print(json.dumps({"schema": SCHEMA, "mode": questions.mode, "seed": seed, "questions": asked}))
        return 0
    _play(questions, progress, args.progress)
    return 0


def _print_card(*, as_json: bool) -> None:
    lines = card()
    if as_json:
        print(json.dumps({"schema": SCHEMA, "card": [asdict(line) for line in lines]}))
        return
    widths = [max(len(getattr(line, name)) for line in lines) for name in ("name", "equation")]
    for line in lines:
        print(f"  {line.name:<{widths[0]}}  {line.equation:<{widths[1]}}  {line.note}")
    print(f"\n{LETTERS}")


def _day(text: str | None) -> date:
    try:
        return date.today() if text is None else date.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"date: {text!r} is not a day such as 2026-11-29") from error


def _chosen(args: argparse.Namespace, seed: int, progress: Progress) -> Run:
    day = _day(args.date)
    if args.question is not None:
        return cited(args.question, day=day)
    if args.mode == "topic" and args.topic is None:
        raise ValueError(f"topic: missing; --mode topic needs --topic, one of {', '.join(TOPICS)}")
    mode: Mode = args.mode or ("topic" if args.topic else "five")
    return start(mode, seed, day=day, progress=progress, topic=args.topic, count=args.count or 5)


def _read(path: Path | None) -> Progress:
    if path is None or not path.exists():
        return EMPTY
    if not path.is_file():  # a device may have no end
        raise ValueError(f"progress: {path} is not an ordinary file")
    try:
        return Progress.from_text(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"progress: {path.name} is not text in UTF-8") from error


def _keep(path: Path, progress: Progress) -> None:
    write_file("progress", path, json.dumps(progress.to_json()) + "\n")


def _judge(args: argparse.Namespace) -> int:
    if args.question is None:
        raise ValueError("answer: needs --question, such as states.total~7")
    question = cited(args.question, day=date.today()).items[0].question()
    if isinstance(question.key, Rubric):
        raise ValueError(f"answer: {question.id} is spoken; its rubric is ticked, not typed")
    found = grade(question, args.answer)
    if found.verdict == "unreadable":
        raise ValueError(f"answer: {found.message}")
    if args.json:
        body = {"schema": SCHEMA, "question": question_json(question), "grade": grade_json(found)}
        print(json.dumps(body))
    else:
        print(found.message)
        _explain(question)
    return 0 if found.correct else 1


def _play(questions: Run, progress: Progress, path: Path | None) -> None:
    if path is not None:
        # a file that cannot be written is said before the first question, not after the last
        _keep(path, progress)
    total = len(questions.items)
    print(
        "Answer with a number and a unit, or a letter. skip leaves one out, quit ends. `trainmem quiz --card` prints "
        "the formulas."
    )
    questions.started_at = time.monotonic()
    while (item := questions.current) is not None:
        question = item.question()
        number = len(questions.grades) + 1
        heading = f"{number}" if questions.mode == "interview" else f"{number} of {total}"
        left = questions.remaining_seconds(time.monotonic())
        clock = "" if left is None else f" · {max(0, round(left)) // 60}:{max(0, round(left)) % 60:02d} left"
        print(f"\n{heading} · {question.topic}{clock}\n")
        _show(question)
        began = time.monotonic()
        found = _ask(question)
        if found is None:
            break
        now = time.monotonic()
        print(f"\n{found.message}")
        _explain(question)
        attempt = questions.record(found, now=now, seconds=now - began)
        if attempt is not None:
            progress = progress.with_(attempt)
            if path is not None:
                _keep(path, progress)
    if questions.grades:
        print(f"\n{share_text(questions)}")
    if questions.mode == "interview" and questions.current is None:
        print(f"The {INTERVIEW_SECONDS // 60} minutes are up, or every question is asked.")


def _show(question: Question) -> None:
    for line in question.setting:
        print(f"  {line}")
    if question.chart is not None:
        print(f"\n{chart_text(question.chart)}\n{question.chart.alt}")
    key = question.key
    asked = f"{question.prompt} ({tolerance_text(key)})" if isinstance(key, NumericKey) else question.prompt
    print(f"\n{asked}")
    if isinstance(key, ChoiceKey):
        for letter, option in zip(_LETTERS, key.options, strict=False):
            print(f"  {letter}. {option.text}")


def _line(prompt: str) -> str | None:
    """A line of input, None at its end or for quit."""
    print(prompt, end="", flush=True)
    text = sys.stdin.readline()
    if not text or text.strip().lower() in ("quit", "q", "exit"):
        print()
        return None
    return text.strip()


def _ask(question: Question) -> Grade | None:
    key = question.key
    if isinstance(key, Rubric):
        return _ask_aloud(key)
    while True:
        text = _line("> ")
        if text is None:
            return None
        if not text:
            print("Nothing typed: give an answer, or say skip or quit.")
            continue
        found = skipped(question) if text.lower() == "skip" else grade(question, text)
        if found.verdict != "unreadable":
            return found
        print(found.message)


def _ask_aloud(rubric: Rubric) -> Grade | None:
    if _line("Think aloud, then press Enter for a model answer. ") is None:
        return None
    print(f"\n{rubric.model_answer}\n\nWhat did you say? y or n for each.")
    ticks: list[bool] = []
    for point in (*rubric.must, *(f"(senior) {point}" for point in rubric.senior)):
        text = _line(f"  {point}? ")
        if text is None:
            return None
        ticks.append(text.lower().startswith("y"))
    text = _line(f"  Did you avoid this: {rubric.avoid} ")
    if text is None:
        return None
    musts = len(rubric.must)
    return grade_spoken(
        rubric,
        [i for i in range(musts) if ticks[i]],
        [i - musts for i in range(musts, len(ticks)) if ticks[i]],
        text.lower().startswith("y"),
    )


def _explain(question: Question) -> None:
    print()
    width = max((len(step.name) for step in question.steps), default=0)
    for step in question.steps:
        print(f"  {step.name:<{width}}  {step.substituted}")
    print(f"\n{question.mistake}\n{question.id} · in the calculator: ?{question.link}")
