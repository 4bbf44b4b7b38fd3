"""The tape holds against the trace on random small jobs, and on jobs that go through every kind one by one.

Both replay the same steps by different means: the tape by its own rules, the trace through the real model and
autograd. By default 28 random jobs that cover the levers between them, and one in 211 of the sweeps' 11,000.
TRAINMEM_RANDOM_JOBS=400 holds the first 400 random ones against each other (about a second each),
TRAINMEM_SWEEP=adapters a whole sweep (or checkpointed_adapters, shapes, levers, options, classifiers; all).
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
from random_jobs import covering_numbers, draw_job
from side_by_side import described, found_apart
from sweep_jobs import SWEEPS, swept

from trainmem.job import TrainingJob

pytestmark = pytest.mark.torch

_ASKED = int(os.environ.get("TRAINMEM_RANDOM_JOBS", "0"))
NUMBERS = list(range(_ASKED)) if _ASKED else covering_numbers(28)

_SWEEP = os.environ.get("TRAINMEM_SWEEP", "")
ONE_IN = 1 if _SWEEP else 211
SWEPT = [
    pytest.param(job, id=f"{name}-{number}")
    for name in SWEEPS
    if _SWEEP in ("", "all", name)
    for number, job in swept(name, ONE_IN)
]


@pytest.fixture(autouse=True, scope="module")
def what_is_there_is_no_garbage() -> Iterator[None]:
    """Building a model collects garbage; looking through torch's own objects takes most of a small job's time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.parametrize("number", NUMBERS)
def test_tape_holds_against_the_trace(number: int) -> None:
    job = draw_job(number)
    found = found_apart(job)
    assert not found, f"job {number}: {described(job)}: " + "; ".join(found)


@pytest.mark.parametrize("job", SWEPT)
def test_tape_holds_against_the_trace_kind_by_kind(job: TrainingJob) -> None:
    found = found_apart(job)
    assert not found, f"{described(job)}: " + "; ".join(found)
