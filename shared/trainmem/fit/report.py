"""`trainmem.fit/1`: the answers of this package as one JSON object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainmem.estimate import Detail
from trainmem.fit.floor import Fraction, StepFloor, measured_fraction, step_floor
from trainmem.fit.frontier import WhatFits
from trainmem.fit.limits import Limit, configurations, largest_micro_batch, longest_sequence
from trainmem.fit.plan import Plans, plans
from trainmem.fit.rent import RentOrOwn, rent_or_own
from trainmem.fit.room import Room
from trainmem.job import TrainingJob

__all__ = ["SCHEMA", "ConfigurationLimits", "JobFit", "as_json", "job_fit"]

SCHEMA = "trainmem.fit/1"


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigurationLimits:
    """The two limits of one configuration."""

    title: str
    job: TrainingJob
    micro_batch: Limit
    sequence_length: Limit

    def to_json(self) -> dict[str, Any]:
        """For the command line."""
        return {
            "configuration": self.title,
            "job": self.job.to_json(),
            "micro_batch": self.micro_batch.to_json(),
            "sequence_length": self.sequence_length.to_json(),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class JobFit:
    """All about one job on one device: the plan, the limits, the step's floor, and where else it would run."""

    plans: Plans
    limits: tuple[ConfigurationLimits, ...]
    floor: StepFloor
    fraction: Fraction | None
    rent_or_own: RentOrOwn


def job_fit(job: TrainingJob, room: Room, detail: Detail = "exact") -> JobFit:
    """Everything that `trainmem fit --model` says."""
    job = job.with_(device=room.device.name)
    return JobFit(
        plans=plans(job, room, detail),
        limits=limits_of(job, room, detail),
        floor=step_floor(job),
        fraction=measured_fraction(job),
        rent_or_own=rent_or_own(job, detail),
    )


def limits_of(job: TrainingJob, room: Room, detail: Detail = "exact") -> tuple[ConfigurationLimits, ...]:
    """The limits of every configuration of a job."""
    return tuple(
        ConfigurationLimits(
            title=found.title,
            job=found.job,
            micro_batch=largest_micro_batch(found.job, room, detail),
            sequence_length=longest_sequence(found.job, room, detail),
        )
        for found in configurations(job)
    )


def as_json(room: Room, *, page: WhatFits | None = None, about: JobFit | None = None) -> dict[str, Any]:
    """One object; ``methods`` and ``lesson`` are null without ``page``, the job's parts without ``about``."""
    return {
        "schema": SCHEMA,
        "device": room.device.name,
        "usable_bytes": room.usable_bytes,
        "context_bytes": room.context_bytes,
        "limit_bytes": room.limit_bytes,
        "settings": _settings(page.like) | {"family": page.family} if page else None,
        "methods": [row.to_json() for row in page.rows] if page else None,
        "lesson": [
            {
                "method": limit.method,
                "answer": limit.answer,
                "substituted": limit.substituted,
                "why": limit.why,
            }
            for limit in page.lesson
        ]
        if page
        else None,
        "job": about.plans.job.to_json() if about else None,
        "verdict": about.plans.to_json() if about else None,
        "limits": [found.to_json() for found in about.limits] if about else None,
        "step_floor": about.floor.to_json() if about else None,
        "measured_fraction": about.fraction.to_json() if about and about.fraction else None,
        "rent_or_own": about.rent_or_own.to_json() if about else None,
    }


def _settings(like: TrainingJob) -> dict[str, Any]:
    names = ("micro_batch", "sequence_length", "accumulation", "attention", "checkpointing", "loss")
    return {name: getattr(like, name) for name in names}
