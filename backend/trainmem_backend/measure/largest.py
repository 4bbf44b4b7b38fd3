"""The largest micro batch that fits, found from the prediction and proved in at most four trials."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

__all__ = ["LEAST_TRIALS", "MOST_TRIALS", "Search", "predicted_largest"]

LEAST_TRIALS = 2
"""One that fits and one that does not."""
MOST_TRIALS = 4
_MOST_BATCHES = 1 << 16


def predicted_largest(fits: Callable[[int], bool]) -> int:
    """The largest micro batch that is predicted to fit; 0 where not even one is.

    Assumes that what fits still fits with a smaller batch. Asks a handful of predictions, no machine.
    """
    if not fits(1):
        return 0
    low, high = 1, 2
    while high <= _MOST_BATCHES and fits(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


@dataclass(kw_only=True, slots=True)
class Search:
    """Closes the bracket "this one fits, the next does not" around a predicted batch.

    Drive it with ``next()`` and ``send(measured_peak or None)``: it yields the batch to try, and is sent
    the measured peak where it fitted, None where it ran out of memory. After a trial that fitted, the
    capacity asked about is lessened by how much the prediction was short there, so that a biased
    prediction costs one trial and not one for every batch it is off.
    """

    fits_in: Callable[[int, int], bool]
    peak_bytes: Callable[[int], int]
    capacity_bytes: int
    tried: list[tuple[int, bool]] = field(default_factory=list)
    predicted: int = 0

    @property
    def fits(self) -> int:
        """Largest batch seen to fit; 0 where none did."""
        return max((batch for batch, fitted in self.tried if fitted), default=0)

    @property
    def fails(self) -> int | None:
        """Smallest batch seen to fail."""
        return min((batch for batch, fitted in self.tried if not fitted), default=None)

    @property
    def closed(self) -> bool:
        """Whether the answer is proved: the batch after the largest that fits was seen to fail."""
        return self.fails == self.fits + 1

    def trials(self) -> Generator[int, int | None, None]:
        """The batches to try, one after the other."""
        self.predicted = self._guess(0)
        batch = max(1, self.predicted)
        short = 0
        while len(self.tried) < MOST_TRIALS and not self.closed:
            measured = yield batch
            self.tried.append((batch, measured is not None))
            if measured is not None:
                short = measured - self.peak_bytes(batch)
            batch = self._next(short)

    def _guess(self, short_bytes: int) -> int:
        return predicted_largest(lambda batch: self.fits_in(batch, self.capacity_bytes - short_bytes))

    def _next(self, short_bytes: int) -> int:
        fails = self.fails
        guess = self._guess(short_bytes)
        if fails is None:
            # All fitted so far: aim at the first that should fail.
            return max(guess, self.fits) + 1
        return max(self.fits + 1, min(guess, fails - 1))

    def to_json(self) -> dict[str, Any]:
        """For the row."""
        return {
            "largest_micro_batch": self.fits or None,
            "fails_at_micro_batch": self.fails,
            "proved": self.closed,
            "predicted_micro_batch": self.predicted,
            "trials": [{"micro_batch": batch, "fitted": fitted} for batch, fitted in self.tried],
        }
