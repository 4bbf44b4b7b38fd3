"""What a visitor's Calculator remembers: the scenario shown, the one just left, and up to four pinned."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from trainmem.job import TrainingJob

__all__ = ["MOST_PINS", "Session", "changed_levers"]

MOST_PINS = 4

_PASSING_SECONDS = 2.0
"""How long a scenario stands that was only typed through: 1 and 10 on the way to 1,000."""


@dataclass(slots=True)
class Session:
    """Kept by the server for one open page; a reload starts anew from the URL and the pins of the browser.

    ``named`` is the model of the catalogue shown last, which comes back when a pasted config goes. ``serial``
    grows with every scenario shown, so that a slow answer can see that it comes too late. ``stood`` is the last
    scenario that was not only typed through, or the one shown.
    """

    job: TrainingJob | None = None
    ghost: TrainingJob | None = None
    moved: tuple[str, ...] = ()
    pins: list[TrainingJob] = field(default_factory=list)
    named: str | None = None
    serial: int = 0
    stood: TrainingJob | None = None
    shown_at: float = 0.0

    def show(self, job: TrainingJob) -> None:
        """Make ``job`` the scenario shown. While one lever moves, the ghost stays where the move began."""
        now = time.monotonic()
        if self.stood is None or now - self.shown_at >= _PASSING_SECONDS:
            self.stood = self.job or job
        self.shown_at = now
        if self.job is not None and job != self.job:
            moved = changed_levers(self.job, job)
            if moved != self.moved or self.ghost is None:
                self.ghost = self.job
            self.moved = changed_levers(self.ghost, job)
            if job == self.ghost:
                self.ghost, self.moved = None, ()
        self.job = job
        if job.config is None:
            self.named = job.model
        self.serial += 1

    def before_typing(self, field: str) -> TrainingJob | None:
        """The scenario to go back to when what is typed into ``field`` turns out wrong: None where the one shown
        is no part of what was typed.
        """
        if self.job is None or self.stood is None or time.monotonic() - self.shown_at >= _PASSING_SECONDS:
            return None
        return self.stood if changed_levers(self.stood, self.job) == (field,) else None

    def pin(self) -> None:
        """Keep the scenario shown, unless it is kept already or four are."""
        if self.job is not None and self.job not in self.pins and len(self.pins) < MOST_PINS:
            self.pins.append(self.job)

    def unpin(self, index: int) -> None:
        """Let a pinned scenario go; an index that is not there changes nothing."""
        if 0 <= index < len(self.pins):
            del self.pins[index]


def changed_levers(before: TrainingJob, after: TrainingJob) -> tuple[str, ...]:
    """The fields in which two jobs differ, in the job's order, parts of a part dotted."""
    return tuple(
        name
        for name, value in _flat(after.to_json()).items()
        if _flat(before.to_json()).get(name, None) != value
    )


def _flat(data: dict[str, object]) -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in data.items():
        if name == "sharding" and isinstance(value, dict):
            flat |= {f"sharding.{part}": inner for part, inner in value.items()}
        else:
            flat[name] = value
    return flat
