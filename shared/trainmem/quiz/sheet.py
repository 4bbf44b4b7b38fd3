"""A printable sheet for someone who interviews: questions first, answers and slips after."""

from __future__ import annotations

import random

from trainmem.quiz.chart_text import chart_text
from trainmem.quiz.grade import key_text, tolerance_text
from trainmem.quiz.quantity import show
from trainmem.quiz.question import ChoiceKey, NumericKey, Question
from trainmem.quiz.templates import TEMPLATES

__all__ = ["sheet", "sheet_questions"]

_LETTERS = "ABCDEFGHIJ"


def sheet_questions(seed: int, count: int = 12) -> tuple[Question, ...]:
    """The questions of a sheet: easy ones first, every topic before any twice, the last one spoken."""
    rng = random.Random(f"sheet~{seed}")
    pool = list(TEMPLATES)
    rng.shuffle(pool)
    chosen = [next(t for t in pool if t.topic == "spoken")] if count else []
    pool = [t for t in pool if t.topic != "spoken"]
    seen: dict[str, int] = {}
    while len(chosen) < min(count, len(pool)):
        template = min((t for t in pool if t not in chosen), key=lambda t: seen.get(t.topic, 0))
        seen[template.topic] = seen.get(template.topic, 0) + 1
        chosen.append(template)
    chosen[1:] = sorted(chosen[1:], key=lambda t: t.level)
    ordered = [*chosen[1:], *chosen[:1]]
    return tuple(t.question(rng.randrange(10**6)) for t in ordered)


def sheet(seed: int, count: int = 12) -> str:
    """The sheet as Markdown: the same seed gives the same sheet."""
    questions = sheet_questions(seed, count)
    asked = "\n\n".join(_asked(i, q) for i, q in enumerate(questions, 1))
    answers = "\n\n".join(_answer(i, q) for i, q in enumerate(questions, 1))
    return (
        f"# Training memory, sheet {seed}\n\n"
        "Paper and pencil. Sizes in GiB unless said; 1 GiB = 2^30 bytes. "
        "b micro batch, s sequence length, h hidden size, a heads, L layers, V vocabulary, P parameters.\n\n"
        f"{asked}\n\n\f# Answers to sheet {seed}\n\n{answers}\n"
    )


def _asked(number: int, question: Question) -> str:
    lines = [f"## {number}. {question.topic.capitalize()}", ""]
    lines += [f"- {line}" for line in question.setting]
    if question.setting:
        lines.append("")
    if question.chart is not None:
        lines += ["```", chart_text(question.chart), "```", ""]
    lines.append(f"**{question.prompt}**")
    key = question.key
    if isinstance(key, NumericKey):
        lines[-1] += f" ({tolerance_text(key)})"
    elif isinstance(key, ChoiceKey):
        lines += ["", *(f"{_LETTERS[i]}. {option.text}  " for i, option in enumerate(key.options))]
    return "\n".join(lines)


def _answer(number: int, question: Question) -> str:
    key = question.key
    lines = [f"## {number}. {question.topic.capitalize()} ({question.id})", ""]
    if isinstance(key, ChoiceKey):
        lines += [f"**{_LETTERS[key.right]}. {key_text(question)}** {key.options[key.right].why}", ""]
        lines += [f"- {_LETTERS[i]}: {option.why}" for i, option in enumerate(key.options) if i != key.right]
    elif isinstance(key, NumericKey):
        lines += [f"**{key_text(question)}**", ""]
        lines += [f"- {show(slip.value, key.unit)}: {slip.name}. {slip.why}" for slip in key.slips]
    else:
        lines += [key.model_answer, ""]
        lines += [f"- [ ] {point}" for point in key.must]
        lines += [f"- [ ] senior: {point}" for point in key.senior]
        lines.append(f"- mistake to avoid: {key.avoid}")
    if question.steps:
        lines += ["", *(f"{step.name}: {step.substituted}  " for step in question.steps)]
    if isinstance(key, NumericKey | ChoiceKey):
        lines += ["", question.mistake]
    return "\n".join(lines)
