"""Judge an answer: right, a known slip, wrong, or unreadable; and how well it was known."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from trainmem.quiz.quantity import AnswerError, in_unit, parse, show
from trainmem.quiz.question import ChoiceKey, NumericKey, Question, Rubric

__all__ = ["Grade", "Verdict", "grade", "grade_spoken", "key_text", "skipped", "tolerance_text"]

_FEWEST_PARAMETERS = 1000
"""Fewer parameters than this were meant in millions or billions."""

_LARGEST = 10**60
"""A number beyond this is no answer, and Python does not write every whole number out."""

_LETTERS = "abcdefghij"

Verdict = Literal["right", "slip", "wrong", "unreadable", "skipped"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Grade:
    """What to say about one answer; ``quality`` is SM-2's 0 to 5. Unreadable answers are not counted."""

    verdict: Verdict
    message: str
    quality: int
    slip: str | None = None

    @property
    def correct(self) -> bool:
        """Whether it counts as known."""
        return self.verdict == "right"


def key_text(question: Question) -> str:
    """The right answer, as shown once the question has been answered."""
    key = question.key
    if isinstance(key, NumericKey):
        return show(key.value, key.unit)
    if isinstance(key, ChoiceKey):
        return key.options[key.right].text
    return key.model_answer


def tolerance_text(key: NumericKey) -> str:
    """How close an answer must be, said beside the field."""
    if key.unit == "parameters":
        return f"such as 42M or 7B, within {key.tolerance:.0%}"
    if key.tolerance == 0:
        return f"in {key.unit}, exact" if key.unit not in ("count", "times") else "exact"
    within = f"within {key.tolerance:.0%}"
    return within if key.unit in ("count", "times") else f"in {key.unit}, {within}"


def grade(question: Question, answer: str | float) -> Grade:
    """Judge a typed number or a chosen option (its number from 1, or its letter); a number is as good as its text.

    Raises `TypeError` for a spoken question; `grade_spoken` judges those.
    """
    key, text = question.key, _typed(answer)
    if isinstance(key, NumericKey):
        return _numeric(key, text)
    if isinstance(key, ChoiceKey):
        return _choice(key, text)
    raise TypeError(f"{question.id} is spoken: its rubric is ticked, not typed")


def _typed(answer: object) -> str:
    """What someone would have typed for ``answer``; nothing for what is neither text nor a number."""
    if isinstance(answer, str):
        return answer
    if isinstance(answer, bool) or not isinstance(answer, int | float) or abs(answer) >= _LARGEST:
        return ""
    return repr(answer)


def skipped(question: Question) -> Grade:
    """The grade of a question left out."""
    key, answer = question.key, key_text(question).rstrip(".")
    if isinstance(key, ChoiceKey):
        answer = f"{_LETTERS[key.right].upper()}: {answer}"
    return Grade(verdict="skipped", message=f"Skipped. The answer is {answer}.", quality=0)


def _numeric(key: NumericKey, answer: str) -> Grade:
    try:
        value = parse(answer, key.unit)
    except AnswerError as error:
        return Grade(verdict="unreadable", message=f"Not read: {error}.", quality=0)
    if key.unit == "parameters" and 0 < value < _FEWEST_PARAMETERS:
        return Grade(verdict="unreadable", message="Not read: say 42M, 7B or the number in full.", quality=0)
    shown = show(key.value, key.unit)
    if key.accepts(value):
        return Grade(verdict="right", message=f"Right: {shown}.", quality=5)
    for slip in key.slips:
        if abs(value - slip.value) <= max(key.tolerance / 2, 0.005) * abs(slip.value):
            return Grade(
                verdict="slip", message=f"Wrong. {slip.why} The answer is {shown}.", quality=2, slip=slip.name
            )
    given = show(value, key.unit) if in_unit(abs(value), key.unit) < 1e15 else "that"
    by = _how_far(value / key.value) if key.value else ""
    return Grade(verdict="wrong", message=f"Wrong: {given} is off{by}. The answer is {shown}.", quality=1)


def _how_far(ratio: float) -> str:
    if ratio <= 0:
        return ""
    times, direction = (ratio, "much") if ratio > 1 else (1 / ratio, "little")
    if times >= 1000:
        return f", more than a thousand times too {direction}"
    return f", {times:.3g} times too {direction}"


def _choice(key: ChoiceKey, answer: str) -> Grade:
    text = answer.strip().lower().rstrip(".)")
    letters = _LETTERS[: len(key.options)]
    if len(text) == 1 and text in letters:
        chosen = letters.index(text)
    elif text.isdecimal() and 1 <= int(text) <= len(key.options):
        chosen = int(text) - 1
    else:
        last = letters[-1].upper()
        return Grade(verdict="unreadable", message=f"Not read: choose one of A to {last}.", quality=0)
    if chosen == key.right:
        return Grade(verdict="right", message=f"Right. {key.options[chosen].why}", quality=5)
    said = f"Wrong. {key.options[chosen].why} The answer is {letters[key.right].upper()}. {key.options[key.right].why}"
    return Grade(verdict="wrong", message=said, quality=1)


def grade_spoken(rubric: Rubric, said: Collection[int], added: Collection[int], avoided: bool) -> Grade:
    """Judge a spoken answer by the lines ticked: indexes into ``must`` and ``senior``."""
    musts = len(set(said) & set(range(len(rubric.must))))
    extras = len(set(added) & set(range(len(rubric.senior))))
    parts = [f"{musts} of {len(rubric.must)} points that must be said"]
    if rubric.senior:
        parts.append(f"{extras} of {len(rubric.senior)} that a senior candidate adds")
    parts.append("the usual mistake avoided" if avoided else "the usual mistake made")
    complete = musts == len(rubric.must) and avoided
    if complete:
        quality = 5 if extras == len(rubric.senior) else 4
    else:
        quality = min(2, round(2 * musts / len(rubric.must)))
    said_all = "Right" if complete else "Not complete"
    return Grade(
        verdict="right" if complete else "wrong", message=f"{said_all}: {', '.join(parts)}.", quality=quality
    )
