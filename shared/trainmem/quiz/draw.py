"""Draw the numbers of a question from its seed, and make questions of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from trainmem.job import TrainingJob
from trainmem.quiz.cases import Case, Model
from trainmem.quiz.chart import Chart
from trainmem.quiz.quantity import Unit, scale_of
from trainmem.quiz.question import ChoiceKey, NumericKey, Option, Question, Rubric, Slip, Step, Topic

__all__ = ["SIZE_TOLERANCE", "Draw", "Template", "template"]

SIZE_TOLERANCE = 0.05
"""For sizes: one rounds on a whiteboard, but GB for GiB (7.4%) must not pass."""

_STAYS = ("micro_batch", "sequence_length", "device")
"""What a chain of questions never changes from one to the next, beside the model."""

T = TypeVar("T")


@dataclass(slots=True)
class Draw:
    """One question in the making: the random numbers of its seed, and the case that a chain pins."""

    template: Template
    seed: int
    pinned: TrainingJob | None = None
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        # a string seeds the same way on every platform and version
        self.random = random.Random(f"{self.template.name}~{self.seed}")

    def choice(self, values: Sequence[T]) -> T:
        """One of ``values``."""
        return self.random.choice(values)

    def case(self, models: Sequence[Model], **levers: Any) -> Case:
        """A job on one of ``models``; a lever given as a list is drawn from.

        In a chain the pinned job's model, batch, length and device stay, and so does any of its levers that
        the list allows; what the template fixes, it fixes.
        """
        pinned = self.pinned
        job = TrainingJob(model=self.choice(models).name)
        if pinned is not None:
            job = job.with_(
                model=pinned.model,
                micro_batch=pinned.micro_batch,
                sequence_length=pinned.sequence_length,
                device=pinned.device,
            )
        values: dict[str, Any] = {}
        for name, value in levers.items():
            kept = pinned is not None and getattr(pinned, name) in (value if isinstance(value, list) else ())
            if pinned is not None and (kept or name in _STAYS):
                values[name] = getattr(pinned, name)
            else:
                values[name] = self.choice(value) if isinstance(value, list) else value
        return Case(job.with_(**values))

    def number(
        self,
        job: TrainingJob,
        *,
        setting: Sequence[str],
        prompt: str,
        value: float,
        unit: Unit,
        steps: Sequence[Step],
        mistake: str,
        tolerance: float = SIZE_TOLERANCE,
        slips: Sequence[Slip] = (),
        chart: Chart | None = None,
    ) -> Question:
        """A question for a number. For sizes, GB taken for GiB joins the slips.

        A slip that the tolerance cannot tell from the key or from an earlier slip is left out: with some
        numbers two mistakes coincide.
        """
        candidates = list(slips)
        if unit in ("GiB", "GB"):
            scale = (1 << 30) / 1e9 if unit == "GiB" else 1e9 / (1 << 30)
            other = "GB" if unit == "GiB" else "GiB"
            candidates.append(
                Slip(value * scale, f"{other} for {unit}", f"That is the number of {other}, not of {unit}.")
            )
        kept: list[Slip] = []
        for slip in candidates:
            others = [value, *(s.value for s in kept)]
            if slip.value > 0 and all(abs(slip.value - o) > 1.2 * max(tolerance, 0.01) * o for o in others):
                kept.append(slip)
        key = NumericKey(value=value, unit=unit, tolerance=tolerance, slips=tuple(kept))
        return self._question(job, setting, prompt, key, steps, mistake, chart)

    def options(
        self,
        job: TrainingJob,
        *,
        setting: Sequence[str] = (),
        prompt: str,
        right: Option,
        wrong: Sequence[Option],
        steps: Sequence[Step] = (),
        mistake: str,
        chart: Chart | None = None,
        place: int | None = None,
        by_text: bool = False,
    ) -> Question:
        """A question with options, in an order that says nothing.

        Shuffled by the seed, or as given with the right one at ``place``, or sorted by their text.
        """
        options = [right, *wrong]
        if place is not None:
            options.insert(place, options.pop(0))
        elif by_text:
            options.sort(key=lambda option: option.text)
        else:
            self.random.shuffle(options)
        key = ChoiceKey(options=tuple(options), right=options.index(right))
        return self._question(job, setting, prompt, key, steps, mistake, chart)

    def spoken(
        self, job: TrainingJob, *, setting: Sequence[str], prompt: str, rubric: Rubric, steps: Sequence[Step]
    ) -> Question:
        """A question answered aloud."""
        return self._question(job, setting, prompt, rubric, steps, rubric.avoid, None)

    def _question(
        self,
        job: TrainingJob,
        setting: Sequence[str],
        prompt: str,
        key: NumericKey | ChoiceKey | Rubric,
        steps: Sequence[Step],
        mistake: str,
        chart: Chart | None,
    ) -> Question:
        return Question(
            template=self.template.name,
            seed=self.seed,
            topic=self.template.topic,
            level=self.template.level,
            setting=tuple(setting),
            prompt=prompt,
            key=key,
            steps=tuple(steps),
            mistake=mistake,
            job=job,
            chart=chart,
        )


@dataclass(frozen=True, slots=True)
class Template:
    """A kind of question: give it a seed and it draws the numbers."""

    name: str
    topic: Topic
    level: int
    build: Callable[[Draw], Question]

    def question(self, seed: int, pinned: TrainingJob | None = None) -> Question:
        """The question of this seed, about the ``pinned`` job where a chain stays with one case."""
        return self.build(Draw(self, seed, pinned))


def template(name: str, topic: Topic, level: int) -> Callable[[Callable[[Draw], Question]], Template]:
    """Turn a function from a `Draw` to a question into a `Template`."""

    def wrap(build: Callable[[Draw], Question]) -> Template:
        return Template(name, topic, level, build)

    return wrap


def size_in(unit: Unit, size_bytes: float) -> float:
    """``size_bytes`` as a number of ``unit``, for prompts."""
    return size_bytes / scale_of(unit)
