"""What there is to measure, suite by suite, each a readable list of trials."""

from __future__ import annotations

from collections.abc import Callable

from trainmem_backend.measure.suites import (
    adapters,
    architectures,
    break_it,
    lesson,
    levers,
    limits,
    machine,
    random_jobs,
    random_wide,
    scaling,
    sharded,
    verify,
)
from trainmem_backend.measure.trial import Trial

__all__ = ["SUITES", "trials_of"]

SUITES: dict[str, Callable[[], list[Trial]]] = {
    "machine": machine.trials,
    "lesson": lesson.trials,
    "scaling": scaling.trials,
    "break-it": break_it.trials,
    "levers": levers.trials,
    "adapters": adapters.trials,
    "architectures": architectures.trials,
    "limits": limits.trials,
    "sharded": sharded.trials,
    "random": random_jobs.trials,
    "random-wide": random_wide.trials,
    "verify": verify.trials,
}
"""Suites by name, in the order in which ``--suite all`` runs them."""


def trials_of(names: list[str]) -> list[Trial]:
    """The trials of the suites named, in order. Raises ``ValueError`` naming an unknown one."""
    found: list[Trial] = []
    for name in list(SUITES) if names == ["all"] else names:
        if name not in SUITES:
            raise ValueError(f"suite: {name!r} is not one of all, {', '.join(SUITES)}")
        found += SUITES[name]()
    return found
