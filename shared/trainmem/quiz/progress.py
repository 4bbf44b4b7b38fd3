"""A learner's history: kept by the learner (a browser, a file), never by a server."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

__all__ = ["EMPTY", "SCHEMA", "Attempt", "Progress", "ProgressError"]

SCHEMA = "trainmem.quiz-progress/1"
_MOST_ATTEMPTS = 2000
_LONGEST_TEXT = 1 << 20
_LONGEST_NAME = 60
_LARGEST_SEED = 1 << 53


class ProgressError(ValueError):
    """A progress file that is not one: one line that names what is wrong."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One answer. Raw attempts are kept, not schedules, so that another scheduler could replay them."""

    template: str
    seed: int
    quality: int
    day: date
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """As the file holds it."""
        return {
            "template": self.template,
            "seed": self.seed,
            "quality": self.quality,
            "day": self.day.isoformat(),
            "seconds": round(self.seconds, 1),
        }


@dataclass(frozen=True, slots=True)
class Progress:
    """All attempts, oldest first; the oldest beyond 2,000 are dropped."""

    attempts: tuple[Attempt, ...] = ()

    def with_(self, attempt: Attempt) -> Progress:
        """This history and one more attempt."""
        return Progress((*self.attempts, attempt)[-_MOST_ATTEMPTS:])

    def to_json(self) -> dict[str, Any]:
        """The object to export, or to keep in a browser."""
        return {"schema": SCHEMA, "attempts": [attempt.to_json() for attempt in self.attempts]}

    @classmethod
    def from_json(cls, data: object) -> Progress:
        """The history in an exported object. Raises `ProgressError` for anything that is not one."""
        if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
            raise ProgressError(f'progress: not an object with "schema": "{SCHEMA}"')
        attempts = data.get("attempts")
        if not isinstance(attempts, list):
            raise ProgressError("attempts: not a list")
        if len(attempts) > _MOST_ATTEMPTS:
            raise ProgressError(f"attempts: {len(attempts):,} of them; at most {_MOST_ATTEMPTS:,}")
        return cls(tuple(_attempt(index, item) for index, item in enumerate(attempts)))

    @classmethod
    def from_text(cls, text: str) -> Progress:
        """The history in an exported file. Raises `ProgressError` for anything that is not one."""
        if len(text) > _LONGEST_TEXT:
            raise ProgressError(f"progress: {len(text):,} characters; at most {_LONGEST_TEXT:,}")
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ProgressError("progress: not JSON; choose a file that this quiz exported") from error
        return cls.from_json(data)

    def known_by(self, topic_of: Mapping[str, str]) -> dict[str, tuple[int, int]]:
        """For each topic, how many answers were right and how many were given."""
        right: Counter[str] = Counter()
        given: Counter[str] = Counter()
        for attempt in self.attempts:
            topic = topic_of.get(attempt.template)
            if topic is not None:
                given[topic] += 1
                right[topic] += attempt.quality >= 3
        return {topic: (right[topic], given[topic]) for topic in given}

    def streak_days(self, today: date) -> int:
        """Days in a row with an attempt, up to today or yesterday."""
        days = {attempt.day for attempt in self.attempts}
        day = today if today in days else today - timedelta(days=1)
        streak = 0
        while day in days:
            streak += 1
            day -= timedelta(days=1)
        return streak


EMPTY = Progress()


def _attempt(index: int, item: object) -> Attempt:
    where = f"attempts[{index}]"
    if not isinstance(item, Mapping):
        raise ProgressError(f"{where}: not an object")
    template = item.get("template")
    if not isinstance(template, str) or not 0 < len(template) <= _LONGEST_NAME:
        raise ProgressError(f"{where}.template: not the name of a question")
    try:
        day = date.fromisoformat(str(item.get("day")))
    except ValueError as error:
        raise ProgressError(f"{where}.day: not a date like 2026-11-29") from error
    return Attempt(
        template=template,
        seed=_whole(f"{where}.seed", item.get("seed"), 0, _LARGEST_SEED),
        quality=_whole(f"{where}.quality", item.get("quality"), 0, 5),
        day=day,
        seconds=_seconds(f"{where}.seconds", item.get("seconds", 0)),
    )


def _whole(name: str, value: object, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ProgressError(f"{name}: not a whole number from {least} to {most:,}")
    return value


def _seconds(name: str, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1e6:
        raise ProgressError(f"{name}: not a number of seconds")
    return float(value)
