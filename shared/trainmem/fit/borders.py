"""Where models stop fitting: the border among the catalogue's models and along a family's curve, by search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from trainmem.buckets import Bucket
from trainmem.estimate import Detail, Estimate
from trainmem.fit.bounds import least_bytes
from trainmem.fit.family import Ladder, Rung, ladder, rung_of
from trainmem.fit.methods import Method
from trainmem.fit.outcome import answer, can_fit, outcome, survives
from trainmem.fit.room import Room
from trainmem.fit.search import largest_from, largest_within
from trainmem.job import JobError, TrainingJob
from trainmem.model import catalogue, resolve

__all__ = [
    "EXAMPLE",
    "Border",
    "Figures",
    "MethodBorders",
    "binding_bucket",
    "borders",
    "example_rung",
    "figures",
    "models",
]

EXAMPLE = "llama2-7b"
"""The 7B that rules of thumb speak of."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """What one size needs and what of: through the allocator where that ran it, else the fast peak."""

    peak_bytes: int
    binding_bucket: Bucket
    peak_instant: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Border:
    """Among sizes that grow, how many there are up to the largest that fits; 0 where not even the first does.

    ``tight``: the largest fits only as `Outcome.tight` says. ``figures`` are the largest's, where they are shown.
    """

    count: int
    tight: bool = False
    figures: Figures | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodBorders:
    """One method's borders among the catalogue's `models` and on a family's `ladder`.

    ``example`` is the border of `EXAMPLE` alone, with its figures even where it does not fit; None for adapters.
    """

    models: Border
    curve: Border
    example: Border | None


def borders(method: Method, like: TrainingJob, room: Room, family: str, detail: Detail) -> MethodBorders:
    """Search for the borders of ``method`` at the batch, length and levers of ``like``."""
    like = method.apply(like.with_(task="causal_lm"))
    example = None
    if method.kind == "full":
        example = _border(
            (example_rung(),), int(_fits(example_rung(), like, room, detail)), like, room, detail
        )
        example = replace(example, figures=figures(example_rung().job(like), room, detail))
    sizes = models(like.sequence_length)
    largest_model = _among_models(sizes, like, room, detail)
    if largest_model.count:
        job = sizes[largest_model.count - 1].job(like)
        largest_model = replace(largest_model, figures=figures(job, room, detail))
    return MethodBorders(
        models=largest_model,
        curve=_along_curve(ladder(family), like, room, detail),
        example=example,
    )


def figures(job: TrainingJob, room: Room, detail: Detail) -> Figures:
    """The figures of one job."""
    quick = answer(job, "fast")
    return Figures(
        peak_bytes=outcome(job, room, detail).peak_bytes or quick.peak_allocated_bytes,
        binding_bucket=binding_bucket(quick),
        peak_instant=quick.peak_instant,
    )


@cache
def example_rung() -> Rung:
    """`EXAMPLE` as a size."""
    entry = catalogue.find(EXAMPLE)
    return rung_of(entry.name, entry.name, entry.config, entry.architecture())


@cache
def models(sequence_length: int) -> tuple[Rung, ...]:
    """The catalogue's causal language models that take this length, small first, one of each size."""
    found: dict[int, Rung] = {}
    for entry in catalogue.entries():
        if entry.task != "causal_lm":
            continue
        try:
            resolved = resolve(TrainingJob(model=entry.name, sequence_length=sequence_length))
        except JobError:
            continue
        rung = rung_of(entry.name, entry.name, entry.config, resolved.architecture)
        found.setdefault(rung.parameters, rung)
    return tuple(found[size] for size in sorted(found))


def _fits(rung: Rung, like: TrainingJob, room: Room, detail: Detail) -> bool:
    return _least(rung, like) <= room.limit_bytes and outcome(rung.job(like), room, detail).fits


def _least(rung: Rung, like: TrainingJob) -> int:
    """`least_bytes` of a size, before any job is made of it."""
    return least_bytes(like, rung.architecture)


def binding_bucket(found: Estimate) -> Bucket:
    """What takes most of the peak."""
    buckets = found.buckets_at_peak
    return max(buckets, key=lambda bucket: buckets[bucket])


def _border(rungs: Sequence[Rung], count: int, like: TrainingJob, room: Room, detail: Detail) -> Border:
    return Border(count=count, tight=count > 0 and outcome(rungs[count - 1].job(like), room, detail).tight)


def _among_models(rungs: Sequence[Rung], like: TrainingJob, room: Room, detail: Detail) -> Border:
    """The largest of models of many families, which need not need more with every parameter more."""
    count = len(rungs)
    while count and not _fits(rungs[count - 1], like, room, detail):
        count -= 1
    return _border(rungs, count, like, room, detail)


def _along_curve(rungs: Ladder, like: TrainingJob, room: Room, detail: Detail) -> Border:
    """The border on one family's curve.

    `least_bytes` bounds the search from above, then the fast peak; the allocator is asked from there downwards.
    """

    def bound(index: int) -> int:
        return _least(rungs[index - 1], like)

    def possible(index: int) -> bool:
        return can_fit(rungs[index - 1].job(like), room)

    limit, some = room.limit_bytes, rungs.anchors[len(rungs.anchors) // 2]
    guess = rungs.near(some.parameters * limit / _least(some, like))
    count = largest_within(limit, len(rungs), bound, start=guess + 1)
    if count and not possible(count):
        # What the fast peak is above the bound changes little from rung to rung.
        job = rungs[count - 1].job(like)
        over = answer(job, "fast").peak_allocated_bytes - least_bytes(job)
        count = largest_from(largest_within(limit - over, count, bound, start=count), count, possible)
    if count and not outcome(rungs[count - 1].job(like), room, detail).fits:
        count = largest_from(count, count, lambda n: survives(rungs[n - 1].job(like), room))
    return _border(rungs, count, like, room, detail)
