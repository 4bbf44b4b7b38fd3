"""A run through questions: which come next, how it ends, what to share."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import date
from typing import Literal, get_args

from trainmem.job import TrainingJob
from trainmem.quiz.chains import CHAINS
from trainmem.quiz.draw import Template
from trainmem.quiz.grade import Grade
from trainmem.quiz.progress import EMPTY, Attempt, Progress
from trainmem.quiz.question import TOPICS, Question, Topic
from trainmem.quiz.schedule import weakest_first
from trainmem.quiz.templates import TEMPLATES, by_name

__all__ = ["INTERVIEW_SECONDS", "MODES", "Item", "Mode", "Run", "cited", "share_text", "start"]

Mode = Literal["five", "today", "interview", "weak", "topic", "cited"]
MODES: tuple[Mode, ...] = get_args(Mode)

INTERVIEW_SECONDS = 600
_QUICK = 5
_FACTS_FIRST = 2
"""So many of the quick ones ask for one fact, so that a run begins with what is easy."""

_MISSES_THAT_END_A_CHAIN = 2


@dataclass(frozen=True, slots=True)
class Item:
    """A question to come: its template and seed, and in an interview the chain it belongs to and its case."""

    template: str
    seed: int
    chain: str | None = None
    pinned: TrainingJob | None = None

    def question(self) -> Question:
        """The question, made anew."""
        return by_name(self.template).question(self.seed, self.pinned)


@dataclass(slots=True)
class Run:
    """Questions in order, and what has been answered. Nothing of it is stored: a run ends with the page."""

    mode: Mode
    seed: int
    items: list[Item]
    day: date
    grades: list[Grade] = field(default_factory=list)
    asked: list[Item] = field(default_factory=list)
    started_at: float | None = None
    seconds: list[float] = field(default_factory=list)

    @property
    def current(self) -> Item | None:
        """The question to answer now, None at the end."""
        return self.items[0] if self.items else None

    def remaining_seconds(self, now: float) -> float | None:
        """What is left of an interview's ten minutes; None where there is no clock."""
        if self.mode != "interview":
            return None
        return INTERVIEW_SECONDS - (now - (now if self.started_at is None else self.started_at))

    def record(self, grade: Grade, *, now: float, seconds: float) -> Attempt | None:
        """Take down the grade of the current question and move on; None when the answer could not be read.

        In an interview two misses end a chain, and nothing is asked once the time is up.
        """
        item = self.current
        if item is None or grade.verdict == "unreadable":
            return None
        if self.started_at is None:
            self.started_at = now - seconds
        self.items.pop(0)
        self.asked.append(item)
        self.grades.append(grade)
        self.seconds.append(seconds)
        if item.chain is not None and self._misses(item.chain) >= _MISSES_THAT_END_A_CHAIN:
            self.items = [other for other in self.items if other.chain != item.chain]
        left = self.remaining_seconds(now)
        if left is not None and left <= 0:
            self.items = []
        return Attempt(
            template=item.template, seed=item.seed, quality=grade.quality, day=self.day, seconds=seconds
        )

    def _misses(self, chain: str) -> int:
        return sum(
            1
            for item, grade in zip(self.asked, self.grades, strict=True)
            if item.chain == chain and not grade.correct
        )

    @property
    def right(self) -> int:
        """How many answers were right."""
        return sum(grade.correct for grade in self.grades)


def start(
    mode: Mode,
    seed: int,
    *,
    day: date,
    progress: Progress = EMPTY,
    topic: Topic | None = None,
    count: int = _QUICK,
) -> Run:
    """A run of a mode.

    five: quick ones from five topics, the easy ones first. today: one of each level, the same for everybody on a date.
    interview: chains in an order of the seed, ten minutes. weak: what SM-2 would ask the learner first.
    topic: questions of one topic. Raises ``ValueError`` for a mode or a topic that does not exist.
    """
    makers: dict[Mode, Callable[[], list[Item]]] = {
        "five": lambda: _quick(seed, count),
        "today": lambda: _today(day),
        "interview": lambda: _interview(seed),
        "weak": lambda: _weak(seed, day, progress, count),
        "topic": lambda: _of_topic(seed, topic, count),
    }
    if mode not in makers:
        raise ValueError(f"mode: {mode!r} is not one of {', '.join(makers)}")
    return Run(mode=mode, seed=seed, items=makers[mode](), day=day)


def cited(question_id: str, *, day: date) -> Run:
    """A run of one cited question, such as "states.total~7". Raises ``ValueError`` for any other text."""
    name, tilde, seed = question_id.partition("~")
    if not tilde or not seed.isdecimal() or len(seed) > 15:
        raise ValueError(f"question: {question_id[:40]!r} is not a name and a seed, such as states.total~7")
    by_name(name)
    return Run(mode="cited", seed=int(seed), items=[Item(name, int(seed))], day=day)


def _answered(templates: Iterable[Template]) -> list[Template]:
    return [template for template in templates if template.topic != "spoken"]


def _quick(seed: int, count: int) -> list[Item]:
    rng = random.Random(f"five~{seed}")
    pool = [t for t in _answered(TEMPLATES) if t.level <= 2 and t.topic != "design"]
    topics = list(dict.fromkeys(t.topic for t in pool))
    rng.shuffle(topics)
    chosen: list[Template] = []
    while len(chosen) < count and len(chosen) < len(pool):
        topic = topics[len(chosen) % len(topics)]
        left = [t for t in pool if t.topic == topic and t not in chosen] or pool
        facts = [t for t in left if t.level == 1]
        chosen.append(rng.choice(facts if facts and len(chosen) < _FACTS_FIRST else left))
    # the topics stand in the order in which one learns them
    chosen.sort(key=lambda t: (t.level, TOPICS.index(t.topic)))
    return [Item(t.name, rng.randrange(10**6)) for t in chosen]


def _today(day: date) -> list[Item]:
    digest = hashlib.sha256(f"trainmem quiz {day.isoformat()}".encode()).hexdigest()
    rng = random.Random(digest)
    chosen: list[Template] = []
    for level in (1, 2, 3):
        topics = {t.topic for t in chosen}
        pool = [t for t in _answered(TEMPLATES) if t.level == level and t.topic not in topics]
        chosen.append(rng.choice(pool))
    return [Item(t.name, rng.randrange(10**6)) for t in chosen]


def _interview(seed: int) -> list[Item]:
    rng = random.Random(f"interview~{seed}")
    chains = list(CHAINS)
    rng.shuffle(chains)
    return [
        Item(name, rng.randrange(10**6), chain.name, job)
        for chain in chains
        for job in (chain.job(seed),)
        for name in chain.templates
    ]


def _weak(seed: int, day: date, progress: Progress, count: int) -> list[Item]:
    rng = random.Random(f"weak~{seed}~{len(progress.attempts)}")
    names = [t.name for t in _answered(TEMPLATES)]
    rng.shuffle(names)
    return [Item(name, rng.randrange(10**6)) for name in weakest_first(progress.attempts, names, day)[:count]]


def _of_topic(seed: int, topic: Topic | None, count: int) -> list[Item]:
    pool = [t for t in TEMPLATES if t.topic == topic]
    if not pool:
        topics = ", ".join(dict.fromkeys(t.topic for t in TEMPLATES))
        raise ValueError(f"topic: {topic!r} is not one of {topics}")
    rng = random.Random(f"topic~{topic}~{seed}")
    rng.shuffle(pool)
    return [Item(pool[i % len(pool)].name, rng.randrange(10**6)) for i in range(count)]


def share_text(run: Run) -> str:
    """The result without spoilers: one square an answer, filled for right, half for a known slip."""
    squares = {"right": "■", "slip": "◧", "wrong": "□", "skipped": "·", "unreadable": "·"}
    names = {
        "five": "five quick ones",
        "today": f"{run.day.day} {run.day:%B %Y}",
        "interview": "mock interview",
    }
    minutes, seconds = divmod(round(sum(run.seconds)), 60)
    took = f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"
    line = "".join(squares[grade.verdict] for grade in run.grades)
    what = names.get(run.mode, run.mode)
    return f"trainmem quiz, {what}: {line}  {run.right} of {len(run.grades)} in {took}"
