"""Between which sizes the measured peak lies, as far as published steps tell, for one engine's answer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from trainmem.results.published import predictions

__all__ = ["Band", "band"]

_ANYTHING = 1 << 62


@dataclass(frozen=True, kw_only=True, slots=True)
class Band:
    """The least and the most that a step may need, and the errors behind them as shares of the measured peak."""

    low_bytes: int
    high_bytes: int
    least_error: float
    most_error: float
    rows: int

    @property
    def sentence(self) -> str:
        """How far such answers were off, in words."""
        if not self.rows:
            return "no step was measured to say how far such a figure is off"
        return (
            f"on {self.rows} measured steps such a figure was between {-self.least_error:.0%} too low and "
            f"{self.most_error:.0%} too high"
        )


@cache
def _errors(engine: str) -> tuple[float, float, int]:
    known = predictions()
    errors = [error for row in known.traits_of_row if (error := known.error(row, engine)) is not None]
    return min(errors, default=0.0), max(errors, default=0.0), len(errors)


def band(size_bytes: int, engine: str = "whiteboard") -> Band:
    """The band of an answer of ``size_bytes``.

    Equation: measured = predicted / (1 + error), for the most negative and the most positive error published.
    Source: the rows and predictions bundled with the package. Leaves out: what kind of job it is; a family
    that nobody measured may lie outside.
    """
    least, most, rows = _errors(engine)
    if not rows:
        return Band(low_bytes=0, high_bytes=_ANYTHING, least_error=0.0, most_error=0.0, rows=0)
    return Band(
        low_bytes=int(size_bytes / (1 + most)),
        high_bytes=-int(-size_bytes // (1 + least)),
        least_error=least,
        most_error=most,
        rows=rows,
    )
