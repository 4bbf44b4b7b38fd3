"""Trials that only ask for memory, beside each other: the allocator's counters belong to one process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from trainmem.units import GIB
from trainmem_backend.measure.trial import Trial

__all__ = ["Room", "grouped", "run_beside"]

_CONTEXT_BYTES = 1 * GIB

_MARGIN = 1.15
"""Room given to a prediction. Reserved memory runs above allocated, by 2% as a rule and 28% at most; a
row that ran out of memory for want of it is run again alone."""


class Room:
    """Admits trials while what they are predicted to need fits together."""

    def __init__(self, total_bytes: int) -> None:
        self._total = total_bytes
        self._used = 0
        self._freed = threading.Condition()

    @contextmanager
    def taken(self, predicted_bytes: int | None) -> Iterator[bool]:
        """Wait for room and take it; says whether the trial has all of it. An unknown need takes all."""
        need = self._total if predicted_bytes is None else round(predicted_bytes * _MARGIN) + _CONTEXT_BYTES
        need = min(need, self._total)
        with self._freed:
            self._freed.wait_for(lambda: self._used + need <= self._total)
            self._used += need
        try:
            yield need == self._total
        finally:
            with self._freed:
                self._used -= need
                self._freed.notify_all()


def grouped(trials: Sequence[Trial], overlap: int) -> list[list[Trial]]:
    """Neighbours that may run beside each other in one list; every other trial in a list of its own."""
    groups: list[list[Trial]] = []
    for trial in trials:
        if overlap > 1 and not trial.timed and groups and not groups[-1][0].timed:
            groups[-1].append(trial)
        else:
            groups.append([trial])
    return groups


def run_beside(
    trials: Sequence[Trial],
    *,
    overlap: int,
    room: Room,
    predicted_bytes: Callable[[Trial], int | None],
    run: Callable[[Trial, bool], Any],
    late: Callable[[], bool],
) -> tuple[list[Trial], list[Trial]]:
    """Run every trial with ``run(trial, alone)``; the trials it answered None to, and those not reached
    in time."""
    again: list[Trial] = []
    left: list[Trial] = []

    def one(trial: Trial) -> None:
        with room.taken(predicted_bytes(trial)) as alone:
            if late():
                left.append(trial)
            elif run(trial, alone) is None:
                again.append(trial)

    with ThreadPoolExecutor(overlap) as pool:
        for future in [pool.submit(one, trial) for trial in trials]:
            future.result()
    return again, left
