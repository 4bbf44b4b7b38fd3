"""Weak spots first: SM-2 over the learner's own attempts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from trainmem.quiz.progress import Attempt

__all__ = ["Card", "cards", "weakest_first"]

_FIRST_INTERVAL_DAYS = 1
_SECOND_INTERVAL_DAYS = 3
_START_EASINESS = 2.5
_LEAST_EASINESS = 1.3
_PASSED = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """What SM-2 remembers of one template."""

    template: str
    repetitions: int = 0
    interval_days: float = 0
    easiness: float = _START_EASINESS
    last: date | None = None
    lapses: int = 0

    def after(self, quality: int, day: date) -> Card:
        """The card once it has been answered with ``quality`` (0 to 5) on ``day``.

        Equation: E' = max(1.3, E + 0.1 - (5 - q)(0.08 + 0.02 (5 - q))); passed with q >= 3 the interval goes
        1, 3, then times E' days; failed it starts again.
        Source: Wozniak 1990, SM-2; the second interval is 3 days instead of 6, as templates draw new numbers.
        """
        miss = 5 - quality
        easiness = max(_LEAST_EASINESS, self.easiness + 0.1 - miss * (0.08 + 0.02 * miss))
        if quality < _PASSED:
            repetitions, interval = 0, float(_FIRST_INTERVAL_DAYS)
        else:
            repetitions = self.repetitions + 1
            firsts = {1: float(_FIRST_INTERVAL_DAYS), 2: float(_SECOND_INTERVAL_DAYS)}
            interval = firsts.get(repetitions, self.interval_days * easiness)
        return Card(
            template=self.template,
            repetitions=repetitions,
            interval_days=interval,
            easiness=easiness,
            last=day,
            lapses=self.lapses + (quality < _PASSED),
        )

    def due(self) -> date:
        """The day on which it should come up again."""
        last = self.last or date.min
        # a file of progress may claim any day there is
        return last + timedelta(days=min(int(self.interval_days), (date.max - last).days))


def cards(attempts: Iterable[Attempt]) -> dict[str, Card]:
    """One card for each template attempted, by replaying the attempts in order."""
    found: dict[str, Card] = {}
    for attempt in attempts:
        card = found.get(attempt.template, Card(template=attempt.template))
        found[attempt.template] = card.after(attempt.quality, attempt.day)
    return found


def weakest_first(attempts: Iterable[Attempt], templates: Sequence[str], today: date) -> list[str]:
    """``templates`` in the order to ask them: due and weak ones, then new ones, then those not yet due."""
    found = cards(attempts)

    def urgency(name: str) -> tuple[int, float, float]:
        card = found.get(name)
        if card is None:
            return (1, 0, 0)
        late = (today - card.due()).days
        return (0 if late >= 0 else 2, card.easiness, -late)

    return sorted(templates, key=urgency)
