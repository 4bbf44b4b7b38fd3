"""What fits: for each way to train, the largest catalogue model and the largest size of a family's curve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from trainmem.buckets import Bucket
from trainmem.estimate import Detail, Estimate
from trainmem.fit.bounds import least_bytes
from trainmem.fit.family import Rung, ladder
from trainmem.fit.measured import rows_of
from trainmem.fit.methods import METHODS, Method
from trainmem.fit.outcome import answer, can_fit, outcome
from trainmem.fit.room import Room
from trainmem.fit.search import largest, largest_from
from trainmem.job import JobError, TrainingJob
from trainmem.model import catalogue, resolve
from trainmem.recording import without_collections
from trainmem.results import MeasuredRow
from trainmem.whiteboard import LessonLimit, lesson_limits
from trainmem.whiteboard.lesson import SPARK_USABLE_BYTES

__all__ = ["DEFAULT_FAMILY", "EXAMPLE", "Fit", "MethodFit", "Size", "WhatFits", "what_fits"]

DEFAULT_FAMILY = "llama3"
EXAMPLE = "llama2-7b"
"""The 7B that rules of thumb speak of."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """One model under one method: whether it fits, what it needs, and what was measured of exactly this step.

    ``name`` is None for a size between models.
    """

    name: str | None
    title: str
    parameters: int
    job: TrainingJob
    fits: bool
    tight: bool

    @property
    def estimate(self) -> Estimate:
        """The tape's answer, worked out when it is asked for."""
        return answer(self.job, "fast")

    @property
    def measured(self) -> MeasuredRow | None:
        """The published row of this very job, on whatever machine."""
        return next(iter(rows_of(self.job)), None)

    @property
    def binding_bucket(self) -> Bucket:
        """What takes most of the peak."""
        buckets = self.estimate.buckets_at_peak
        return max(buckets, key=lambda bucket: buckets[bucket])

    def to_json(self) -> dict[str, Any]:
        """For the command line."""
        row = self.measured
        return {
            "name": self.name,
            "title": self.title,
            "parameters": self.parameters,
            "fits": self.fits,
            "tight": self.tight,
            "engine": self.estimate.engine,
            "peak_allocated_bytes": self.estimate.peak_allocated_bytes,
            "binding_bucket": self.binding_bucket,
            "peak_instant": self.estimate.peak_instant,
            "measured": {
                "peak_allocated_bytes": row.peak_allocated_bytes,
                "machine": row.machine,
                "outcome": row.outcome,
                "id": row.id,
            }
            if row
            else None,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """The border among sizes that grow: the largest that fits, and the first above it that does not.

    ``largest`` None: not even the smallest fits; ``beyond`` None: all of them do.
    """

    largest: Size | None
    beyond: Size | None


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodFit:
    """One row of the page: a method, its border in the catalogue, on the curve, and the family's models.

    ``example`` is `EXAMPLE` fully fine-tuned by this recipe, whether it fits or not.
    """

    method: Method
    catalogue: Fit
    curve: Fit
    members: tuple[Size, ...]
    example: Size | None

    def to_json(self) -> dict[str, Any]:
        """For the command line."""

        def sized(size: Size | None) -> dict[str, Any] | None:
            return size.to_json() if size else None

        return {
            "method": self.method.key,
            "title": self.method.title,
            "kind": self.method.kind,
            "catalogue": {"largest": sized(self.catalogue.largest), "beyond": sized(self.catalogue.beyond)},
            "curve": {"largest": sized(self.curve.largest), "beyond": sized(self.curve.beyond)},
            "members": [size.to_json() for size in self.members],
            "example": sized(self.example),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class WhatFits:
    """The whole page for one device or budget."""

    room: Room
    like: TrainingJob
    family: str
    detail: Detail
    rows: tuple[MethodFit, ...]
    lesson: tuple[LessonLimit, ...]


def what_fits(
    room: Room, like: TrainingJob, *, family: str = DEFAULT_FAMILY, detail: Detail = "exact"
) -> WhatFits:
    """The page: every method at ``like``'s micro batch, sequence length, checkpointing, attention and loss.

    ``like``'s model, precision, optimizer and adapters do not matter. "fast" decides by the fast peak, whose
    "does not fit" is certain; "exact" asks the allocator wherever that peak leaves the question open.
    """
    like = like.with_(device=room.device.name, task="causal_lm")
    with without_collections():
        rows = tuple(_row(method, method.apply(like), room, family, detail) for method in METHODS)
    return WhatFits(
        room=room,
        like=like,
        family=family,
        detail=detail,
        rows=rows,
        lesson=lesson_limits(_lesson_bytes(room)),
    )


def _lesson_bytes(room: Room) -> int:
    """What the rule of thumb starts from: on a Spark what is always said of it, else the room."""
    is_spark = room.device.name == "spark" and not room.is_budget
    return SPARK_USABLE_BYTES if is_spark else room.usable_bytes


def _row(method: Method, like: TrainingJob, room: Room, family: str, detail: Detail) -> MethodFit:
    rungs = ladder(family)
    curve = _along_curve(rungs, like, room, detail)
    return MethodFit(
        method=method,
        catalogue=_among_models(_catalogue(like.sequence_length), like, room, detail),
        curve=curve,
        members=tuple(_size(rung, like, room, detail, curve) for rung in rungs.anchors if rung.name),
        example=_size(_example(), like, room, detail) if method.kind == "full" else None,
    )


@cache
def _example() -> Rung:
    entry = catalogue.find(EXAMPLE)
    size = entry.architecture().parameter_count
    return Rung(name=entry.name, title=entry.name, config=entry.config, parameters=size)


@cache
def _catalogue(sequence_length: int) -> tuple[Rung, ...]:
    """Causal language models that take this length, small first, one of each size."""
    found: dict[int, Rung] = {}
    for entry in catalogue.entries():
        if entry.task != "causal_lm":
            continue
        try:
            resolved = resolve(TrainingJob(model=entry.name, sequence_length=sequence_length))
        except JobError:
            continue
        size = resolved.architecture.parameter_count
        if size not in found:
            found[size] = Rung(name=entry.name, title=entry.name, config=entry.config, parameters=size)
    return tuple(found[size] for size in sorted(found))


def _among_models(rungs: Sequence[Rung], like: TrainingJob, room: Room, detail: Detail) -> Fit:
    """The largest of models of many families, which need not need more with every parameter more."""
    beyond: Rung | None = None
    for rung in reversed(rungs):
        if outcome(rung.job(like), room, detail).fits:
            return _fit(rung, beyond, like, room, detail)
        beyond = rung
    return _fit(None, beyond, like, room, detail)


def _along_curve(rungs: Sequence[Rung], like: TrainingJob, room: Room, detail: Detail) -> Fit:
    """The border on one family's curve.

    `least_bytes` bounds the search from above, then the fast peak; the allocator is asked from there downwards.
    """

    def bound_fits(index: int, over: int = 0) -> bool:
        return least_bytes(rungs[index - 1].job(like)) + over <= room.limit_bytes

    def fitting(index: int) -> bool:
        return outcome(rungs[index - 1].job(like), room, detail).fits

    def possible(index: int) -> bool:
        return can_fit(rungs[index - 1].job(like), room)

    index = largest(len(rungs), bound_fits)
    if index and not possible(index):
        # What the fast peak is above the bound changes little from rung to rung.
        job = rungs[index - 1].job(like)
        over = answer(job, "fast").peak_allocated_bytes - least_bytes(job)
        index = largest_from(largest(index, lambda n: bound_fits(n, over)), index, possible)
    if index and detail == "exact":
        index = largest_from(index, index, fitting)
    return _fit(
        rungs[index - 1] if index else None,
        rungs[index] if index < len(rungs) else None,
        like,
        room,
        detail,
    )


def _fit(largest: Rung | None, beyond: Rung | None, like: TrainingJob, room: Room, detail: Detail) -> Fit:
    return Fit(
        largest=_size(largest, like, room, detail) if largest else None,
        beyond=_size(beyond, like, room, detail) if beyond else None,
    )


def _size(rung: Rung, like: TrainingJob, room: Room, detail: Detail, border: Fit | None = None) -> Size:
    """The rung's answer, by the border of its curve where that tells."""
    job = rung.job(like)
    found = outcome(job, room, detail) if border is None else None
    return Size(
        name=rung.name,
        title=rung.title,
        parameters=rung.parameters,
        job=job,
        fits=_below(rung, border) if found is None else found.fits,
        tight=found is not None and found.tight,
    )


def _below(rung: Rung, border: Fit | None) -> bool:
    """Whether a size of the curve fits."""
    largest = border.largest if border else None
    return largest is not None and rung.parameters <= largest.parameters
