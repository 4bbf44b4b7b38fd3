"""The one place where the app asks trainmem. Answers are pure, so visitors share a cache of them."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from trainmem.device import device
from trainmem.estimate import Estimate, Timeline, estimate, notices, timeline
from trainmem.job import JobError, TrainingJob
from trainmem.model import catalogue, resolve
from trainmem.verdict import Verdict, verdict
from trainmem.whiteboard import Whiteboard, whiteboard

__all__ = [
    "Detail",
    "answer",
    "board",
    "known_model",
    "model_names",
    "one_step",
    "replayable",
    "three_things",
    "verdict_on",
]

Detail = Literal["fast", "exact"]

# The exact answer replays every block of up to four micro batches. Beyond this many it would take seconds that
# one visitor takes from all others; the fast answer, which leaves out reserved memory, stands instead.
_MOST_BLOCKS = 800

# Enough for a few visitors moving levers; an entry is a few kilobytes.
_KEPT = 512


def replayable(job: TrainingJob) -> bool:
    """Whether the whole step is short enough to be replayed for a visitor."""
    return resolve(job).architecture.layers * min(job.accumulation, 4) <= _MOST_BLOCKS


@lru_cache(maxsize=_KEPT)
def answer(job: TrainingJob, detail: Detail) -> Estimate:
    """The tape's estimate; never exact where `replayable` says no. Raises `ValueError`, one line."""
    return estimate(job, engine="tape", detail=detail if replayable(job) else "fast")


@lru_cache(maxsize=_KEPT)
def verdict_on(job: TrainingJob, detail: Detail) -> Verdict:
    """Whether the job fits on its own device, in words, with the cheapest lever that changes that."""
    return verdict(job, answer(job, detail), device(job.device))


@lru_cache(maxsize=_KEPT)
def board(job: TrainingJob) -> Whiteboard:
    """The whiteboard's sum for the job, and why real code needs more."""
    return whiteboard(job, resolve(job).architecture)


@lru_cache(maxsize=64)
def one_step(job: TrainingJob, first_step: bool = False) -> Timeline:
    """The named instants and the curve of one step. Raises `ValueError` where it cannot be replayed here."""
    if not replayable(job):
        raise JobError(
            f"model: {resolve(job).architecture.layers:,} blocks are too many to replay while you wait; "
            "the Calculator's figures hold, and `trainmem estimate` replays them on your machine"
        )
    return timeline(job, engine="tape", first_step=first_step)


def model_names() -> list[str]:
    """The catalogue's names, in its order."""
    return [entry.name for entry in catalogue.entries()]


def known_model(name: str) -> catalogue.Entry | None:
    """The catalogue's entry for a name or a Hugging Face id, None for any other."""
    try:
        return catalogue.find(name)
    except JobError:
        return None


def three_things(job: TrainingJob) -> tuple[str, str, str]:
    """What to notice in one step of the job, first and later, in words."""
    return notices(one_step(job, True), one_step(job), job.checkpointing != "none")
