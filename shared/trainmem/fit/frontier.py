"""What fits: for each way to train, the largest catalogue model and the largest size of a family's curve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainmem.buckets import Bucket
from trainmem.estimate import Detail, Estimate
from trainmem.fit.borders import (
    Border,
    Figures,
    MethodBorders,
    binding_bucket,
    borders,
    example_rung,
    models,
)
from trainmem.fit.family import DEFAULT_FAMILY, Rung, ladder
from trainmem.fit.measured import rows_of
from trainmem.fit.methods import METHODS, Method
from trainmem.fit.outcome import answer
from trainmem.fit.published import published_borders
from trainmem.fit.room import Room
from trainmem.job import TrainingJob
from trainmem.model import resolve
from trainmem.recording import without_collections
from trainmem.results import MeasuredRow, predictions
from trainmem.whiteboard import LessonLimit, lesson_limits
from trainmem.whiteboard.lesson import SPARK_USABLE_BYTES

__all__ = ["Fit", "MethodFit", "Size", "WhatFits", "lesson_bytes", "what_fits"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """One model under one method: whether it fits, what it needs, and what was measured of exactly this step.

    ``name`` is None for a size between models. ``figures`` None: worked out when they are asked for.
    """

    name: str | None
    title: str
    parameters: int
    job: TrainingJob
    fits: bool
    tight: bool
    figures: Figures | None = None

    @property
    def estimate(self) -> Estimate:
        """The tape's fast answer, worked out when it is asked for."""
        return answer(self.job, "fast")

    @property
    def peak_allocated_bytes(self) -> int:
        """See `Figures`."""
        return self.figures.peak_bytes if self.figures else self.estimate.peak_allocated_bytes

    @property
    def peak_instant(self) -> str:
        """When that is."""
        return self.figures.peak_instant if self.figures else self.estimate.peak_instant

    @property
    def binding_bucket(self) -> Bucket:
        """What takes most of the peak."""
        return self.figures.binding_bucket if self.figures else binding_bucket(self.estimate)

    @property
    def measured(self) -> MeasuredRow | None:
        """The published row of this very job, on whatever machine."""
        return next(iter(rows_of(self.job)), None)

    @property
    def predicted_bytes(self) -> int:
        """What stands beside `measured`: the prediction published with that row, else the peak here."""
        row = self.measured
        known = predictions().of_row.get(row.id, {}).get("tape") if row else None
        return (known.peak_allocated_bytes if known else None) or self.peak_allocated_bytes

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
            "peak_allocated_bytes": self.peak_allocated_bytes,
            "binding_bucket": self.binding_bucket,
            "peak_instant": self.peak_instant,
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
    "does not fit" is certain; "exact" asks the allocator wherever that peak leaves the question open. What
    `published_borders` knows is exact at once, whichever was asked for.
    """
    like = like.with_(device=room.device.name, task="causal_lm")
    for rung in ladder(family).anchors:
        resolve(rung.job(like))
    with without_collections():
        published = [published_borders(method, like, room, family) for method in METHODS]
        found = [known for known in published if known is not None]
        if len(found) == len(METHODS):
            detail = "exact"
        else:
            found = [borders(method, like, room, family, detail) for method in METHODS]
        rows = tuple(_row(method, like, family, at) for method, at in zip(METHODS, found, strict=True))
    return WhatFits(
        room=room,
        like=like,
        family=family,
        detail=detail,
        rows=rows,
        lesson=lesson_limits(lesson_bytes(room)),
    )


def lesson_bytes(room: Room) -> int:
    """What the rule of thumb starts from: on a Spark what is always said of it, else the room."""
    is_spark = room.device.name == "spark" and not room.is_budget
    return SPARK_USABLE_BYTES if is_spark else room.usable_bytes


def _row(method: Method, like: TrainingJob, family: str, at: MethodBorders) -> MethodFit:
    like = method.apply(like)
    rungs = ladder(family)
    count = at.curve.count
    largest = rungs[count - 1].parameters if count else 0
    return MethodFit(
        method=method,
        catalogue=_fit(models(like.sequence_length), at.models, like),
        curve=_fit(rungs, at.curve, like),
        members=tuple(
            _size(rung, like, fits=rung.parameters <= largest) for rung in rungs.anchors if rung.name
        ),
        example=_size(example_rung(), like, fits=at.example.count > 0, at=at.example) if at.example else None,
    )


def _fit(rungs: Sequence[Rung], at: Border, like: TrainingJob) -> Fit:
    return Fit(
        largest=_size(rungs[at.count - 1], like, fits=True, at=at) if at.count else None,
        beyond=_size(rungs[at.count], like, fits=False) if at.count < len(rungs) else None,
    )


def _size(rung: Rung, like: TrainingJob, *, fits: bool, at: Border | None = None) -> Size:
    return Size(
        name=rung.name,
        title=rung.title,
        parameters=rung.parameters,
        job=rung.job(like),
        fits=fits,
        tight=at is not None and at.tight,
        figures=at.figures if at else None,
    )
