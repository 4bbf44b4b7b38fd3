"""What a question is: facts given, a prompt, a key, and the sum that leads to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from trainmem.job import TrainingJob
from trainmem.permalink import encode
from trainmem.quiz.chart import Chart
from trainmem.quiz.quantity import Unit

__all__ = [
    "TOPICS",
    "ChoiceKey",
    "Key",
    "NumericKey",
    "Option",
    "Question",
    "Rubric",
    "Slip",
    "Step",
    "Topic",
]

Topic = Literal[
    "bytes per parameter",
    "buckets",
    "activations",
    "step by step",
    "levers",
    "sharding",
    "adapters",
    "measuring",
    "timelines",
    "mistakes",
    "design",
    "spoken",
]
TOPICS: tuple[Topic, ...] = get_args(Topic)


@dataclass(frozen=True, slots=True)
class Slip:
    """A wrong answer that people give for one reason: its value, the reason's name, and what to say about
    it."""

    value: float
    name: str
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NumericKey:
    """A number, in the unit's own base (bytes for sizes, ones for counts).

    ``tolerance`` is relative; 0 wants the number itself.
    """

    value: float
    unit: Unit
    tolerance: float
    slips: tuple[Slip, ...] = ()

    def accepts(self, value: float) -> bool:
        """Whether ``value`` is within the tolerance; an exact key forgives the last digit of a float."""
        return abs(value - self.value) <= max(self.tolerance, 1e-9) * abs(self.value)


@dataclass(frozen=True, slots=True)
class Option:
    """One choice, and what to say to someone who took it: why it is right, or the mistake behind it."""

    text: str
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ChoiceKey:
    """Options in the order shown, and which one is right."""

    options: tuple[Option, ...]
    right: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Rubric:
    """How a spoken answer is judged by the one who gave it.

    ``must`` is what has to be said, ``senior`` what an experienced engineer adds, ``avoid`` the usual
    mistake.
    """

    model_answer: str
    must: tuple[str, ...]
    senior: tuple[str, ...]
    avoid: str


Key: TypeAlias = NumericKey | ChoiceKey | Rubric


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the sum shown after the answer: what it is, and its equation with the numbers put in."""

    name: str
    substituted: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """One question: a template, the seed that drew its numbers, and everything a page or a terminal shows.

    ``level`` is 1 for one fact, 2 for one sum, 3 for a judgement. ``job`` is the case to open in the
    calculator. The key is computed when the question is made and never stored.
    """

    template: str
    seed: int
    topic: Topic
    level: int
    setting: tuple[str, ...]
    prompt: str
    key: Key
    steps: tuple[Step, ...]
    mistake: str
    job: TrainingJob
    chart: Chart | None = None

    @property
    def id(self) -> str:
        """What to cite: the template and its seed."""
        return f"{self.template}~{self.seed}"

    @property
    def link(self) -> str:
        """The query string that opens this case in the calculator."""
        return encode(self.job)
