"""Between which sizes the measured peak lies, as far as published steps tell, for one engine's answer."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cache

from trainmem.job import TrainingJob
from trainmem.results.likeness import TRAITS, traits
from trainmem.results.published import predictions

__all__ = ["Band", "band"]

_ANYTHING = 1 << 62

_ALIKE = ("checkpointing", "family", "adapters", "precision")
"""What decides how far off a sum is, from most to least: it errs about activations, and checkpointing decides whether
they are there at all."""

_FEWEST_ROWS = 19
"""The worst of n rows is outdone by the next in 2 of n + 1 cases: in one of ten."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Band:
    """The least and the most that a step may need, and the errors behind them as shares of the measured peak.

    ``alike``: the traits that the ``rows``, which are ``of`` what was measured, have in common with the job.
    """

    low_bytes: int
    high_bytes: int
    least_error: float
    most_error: float
    rows: int
    alike: tuple[str, ...] = ()
    of: str = "measured steps"

    @property
    def sentence(self) -> str:
        """How far such answers were off at worst, in words."""
        if not self.rows:
            return "no step was measured to say how far such a figure is off"
        same = f" of the same {' and '.join(self.alike)}" if self.alike else ""
        return (
            f"on {self.rows} {self.of}{same} such a figure was between {max(0.0, -self.least_error):.0%} too low "
            f"and {max(0.0, self.most_error):.0%} too high"
        )


@cache
def _errors(engine: str) -> dict[tuple[str, ...], tuple[float, float, int]]:
    """The least and the most error and how many there are, by the values of the first traits of `_ALIKE`."""
    known = predictions()
    groups: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for row, values in known.traits_of_row.items():
        error = known.error(row, engine)
        if error is not None:
            for length in range(len(_ALIKE) + 1):
                groups[_first(values, length)].append(error)
    return {key: (min(errors), max(errors), len(errors)) for key, errors in groups.items()}


def _first(values: tuple[str, ...], length: int) -> tuple[str, ...]:
    return tuple(values[TRAITS.index(name)] for name in _ALIKE[:length])


def band(size_bytes: int, job: TrainingJob, engine: str = "whiteboard") -> Band:
    """The band of an answer of ``size_bytes`` to ``job``.

    Equation: measured = predicted / (1 + error), for the most negative and the most positive error of the published
    rows that share the first traits of `_ALIKE` with the job, as many as leave `_FEWEST_ROWS`. It is the worst error
    and not the typical one, as half of all steps are further off than that.
    Source: the rows and predictions bundled with the package. Known error: each row against the band of the others,
    14 of 498 lie outside. Leaves out: a family that nobody measured may be further off.
    """
    known, values = _errors(engine), traits(job)
    for length in range(len(_ALIKE), -1, -1):
        least, most, rows = known.get(_first(values, length), (0.0, 0.0, 0))
        if rows >= _FEWEST_ROWS or (rows and not length):
            return Band(
                low_bytes=int(size_bytes / (1 + most)),
                high_bytes=-int(-size_bytes // (1 + least)),
                least_error=least,
                most_error=most,
                rows=rows,
                alike=_ALIKE[:length],
            )
    return Band(low_bytes=0, high_bytes=_ANYTHING, least_error=0.0, most_error=0.0, rows=0)
