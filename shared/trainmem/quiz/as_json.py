"""Questions, grades and runs as plain JSON objects."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from trainmem.quiz.grade import Grade, key_text, tolerance_text
from trainmem.quiz.quantity import in_unit
from trainmem.quiz.question import ChoiceKey, NumericKey, Question

__all__ = ["SCHEMA", "grade_json", "question_json"]

SCHEMA = "trainmem.quiz/1"


def question_json(question: Question) -> dict[str, Any]:
    """One question with its key, for tools and for someone who interviews."""
    key = question.key
    answer: dict[str, Any] = {"text": key_text(question)}
    found: dict[str, Any] = {
        "id": question.id,
        "topic": question.topic,
        "level": question.level,
        "setting": list(question.setting),
        "prompt": question.prompt,
    }
    if isinstance(key, NumericKey):
        found |= {"kind": "number", "unit": key.unit, "tolerance": key.tolerance, "say": tolerance_text(key)}
        answer["value"] = in_unit(key.value, key.unit)
        answer["slips"] = [
            {"value": in_unit(slip.value, key.unit), "name": slip.name, "why": slip.why} for slip in key.slips
        ]
    elif isinstance(key, ChoiceKey):
        found |= {"kind": "choice", "options": [option.text for option in key.options]}
        answer |= {"option": key.right + 1, "why": [option.why for option in key.options]}
    else:
        found["kind"] = "spoken"
        answer |= {"must": list(key.must), "senior": list(key.senior), "avoid": key.avoid}
    found["chart"] = asdict(question.chart) if question.chart is not None else None
    found["answer"] = answer
    found["steps"] = [asdict(step) for step in question.steps]
    found["mistake"] = question.mistake
    found["job"] = question.job.to_json()
    found["link"] = question.link
    return found


def grade_json(grade: Grade) -> dict[str, Any]:
    """One grade."""
    return {"correct": grade.correct, **asdict(grade)}
