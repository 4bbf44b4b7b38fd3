"""Would the machine run it? The step replayed on a device of a given size, and where it dies if it does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from trainmem.allocator import (
    TURN_ON_EXPANDABLE_SEGMENTS,
    AllocatorSettings,
    CapacityAnswer,
    CapacityVerdict,
    OutOfMemory,
    check_capacity,
)
from trainmem.device import Device, device
from trainmem.estimate import Engine, Estimate, NotReplayed, estimate, recording_of
from trainmem.instant import describe_instant, short_op
from trainmem.job import JobError, TrainingJob
from trainmem.rank_band import rank_band
from trainmem.recording import Phase, Recording
from trainmem.results import Band, band
from trainmem.trace_command import untraceable
from trainmem.units import MIB, format_bytes, format_gib

__all__ = [
    "SCHEMA",
    "WORST",
    "CapacityReport",
    "Death",
    "SumAnswer",
    "capacity_report",
    "needed_bytes",
    "sum_answer",
    "sum_doubt",
    "sum_low_bytes",
    "sum_name",
]

SCHEMA = "trainmem.capacity/1"

SumAnswer = Literal["probably_fits", "unsure", "probably_out_of_memory"]
"""What can be said where no step of the job itself was replayed, and the error is a share of the answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Death:
    """Where a job runs out of memory: the step (0 while loading the model), the phase, and what was asked for."""

    step: int
    phase: Phase
    op: str
    module: str
    oom: OutOfMemory
    sentence: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CapacityReport:
    """The answer of a device of ``capacity_bytes``, ``outside_bytes`` of which PyTorch never gets."""

    engine: Engine
    answer: CapacityAnswer | SumAnswer
    capacity_bytes: int
    outside_bytes: int
    peak_reserved_bytes: int | None
    death: Death | None
    sentence: str
    warnings: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the job runs as it is set, or probably does."""
        return self.answer in ("fits", "probably_fits")

    def shortfall(self, needed_bytes: int) -> str | None:
        """What a step that reserves ``needed_bytes`` with room for all lacks here; None where it dies nowhere."""
        short = needed_bytes + self.outside_bytes - self.capacity_bytes
        if self.death is None or short <= 0:
            return None
        return (
            f"It needs {format_gib(needed_bytes)} and {format_gib(self.outside_bytes)} for the CUDA context: "
            f"short by {format_gib(short)}."
        )

    def to_json(self) -> dict[str, Any]:
        """One object of schema `trainmem.capacity/1`."""
        death = self.death
        return {
            "schema": SCHEMA,
            "engine": self.engine,
            "answer": self.answer,
            "capacity_bytes": self.capacity_bytes,
            "outside_bytes": self.outside_bytes,
            "peak_reserved_bytes": self.peak_reserved_bytes,
            "sentence": self.sentence,
            "warnings": list(self.warnings),
            "death": None
            if death is None
            else {
                "step": death.step,
                "phase": death.phase,
                "module": death.module,
                "op": death.op,
                "tried_bytes": death.oom.tried_bytes,
                "free_bytes": death.oom.free_bytes,
                "line": death.oom.line,
                "mechanism": death.oom.mechanism,
                "sentence": death.sentence,
            },
        }


def capacity_report(
    job: TrainingJob,
    capacity_bytes: int,
    *,
    engine: Engine = "tape",
    settings: AllocatorSettings | None = None,
    recording: Recording | None = None,
) -> CapacityReport:
    """Replay three steps of ``job`` on a device of this size, its CUDA context taken from ``job.device``.

    ``recording`` is the engine's, where there is one already.

    Where the tape does not know the job, and for the whiteboard, the answer is that of `Estimate.is_sum` and its
    band of errors. Raises `JobError` where the job cannot be replayed at all.
    """
    if capacity_bytes < MIB:
        raise ValueError(
            f"capacity: {capacity_bytes:,} bytes hold nothing; give a size with its unit, such as 24GiB"
        )
    spec = device(job.device)
    if not spec.cuda:
        raise JobError(
            f"device: {spec.name} has no CUDA, so a job does not run there whatever its size; choose one of "
            "`trainmem devices`"
        )
    if engine == "whiteboard":
        return _from_sum(job, capacity_bytes, spec, engine, settings)
    try:
        recording = recording or recording_of(job, engine)
    except NotReplayed:
        return _from_sum(job, capacity_bytes, spec, engine, settings)
    outside = spec.usable_bytes - spec.allocator_limit_bytes
    verdict = check_capacity(
        recording.events,
        capacity_bytes=capacity_bytes,
        outside_bytes=outside,
        settings=settings,
        streams=recording.streams(),
        empty_cache_before=recording.empty_cache_before,
    )
    death = _death(job, recording, verdict.oom) if verdict.oom is not None else None
    return CapacityReport(
        engine=engine,
        answer=verdict.answer,
        capacity_bytes=capacity_bytes,
        outside_bytes=outside,
        peak_reserved_bytes=_reserved(verdict),
        death=death,
        sentence=_sentence(verdict, death),
    )


def needed_bytes(answer: Estimate) -> int:
    """What the caching allocator must hold: reserved where it was replayed, else allocated."""
    reserved = answer.peak_reserved_bytes
    return answer.peak_allocated_bytes if reserved is None else reserved


def sum_answer(answer: Estimate, limit_bytes: int) -> SumAnswer:
    """Whether an `Estimate.is_sum` fits what the allocator may take, anywhere in the band of its errors."""
    found = _sum_band(answer)
    if found.high_bytes <= limit_bytes:
        return "probably_fits"
    return "unsure" if found.low_bytes <= limit_bytes else "probably_out_of_memory"


def sum_low_bytes(answer: Estimate) -> int:
    """The least that an `Estimate.is_sum` may need, anywhere in the band of its errors."""
    return _sum_band(answer).low_bytes


def sum_doubt(answer: Estimate) -> str:
    """What the verdict of an `Estimate.is_sum` allows for, without a full stop."""
    said = f"{_worst(answer)}: {_sum_band(answer).sentence}"
    if answer.peak_reserved_bytes is None:
        return said
    tensors = format_gib(answer.peak_allocated_bytes)
    return f"{said}; of it {tensors} are tensors, and the rest the allocator gives back in part where it must"


def sum_name(answer: Estimate) -> str:
    """``"the whiteboard's sum is"``, to be followed by a size."""
    return "one rank needs" if answer.over_ranks else "the whiteboard's sum is"


def _sum_band(answer: Estimate) -> Band:
    if answer.over_ranks:
        return rank_band(answer.peak_allocated_bytes, needed_bytes(answer), answer.job)
    return band(needed_bytes(answer), answer.job)


WORST = "No step was replayed, so this allows for the worst error of such sums, not for their typical one"
"""Why a sum's verdict is less sure than its typical error sounds."""


def _worst(answer: Estimate) -> str:
    if not answer.over_ranks:
        return WORST
    if untraceable(answer.job) is not None:
        return "No rank like it was measured or traced, so this allows for the worst error of the whiteboard's sums"
    return "The rank's step was put together from the unsharded one, so this allows for the worst error of such figures"


_SUM_WORDS: dict[SumAnswer, str] = {
    "probably_fits": "Probably fits in",
    "unsure": "Too close to say for",
    "probably_out_of_memory": "Probably does not fit in",
}


def _from_sum(
    job: TrainingJob, capacity_bytes: int, spec: Device, engine: Engine, settings: AllocatorSettings | None
) -> CapacityReport:
    found = estimate(job, engine, settings=settings)
    outside = spec.usable_bytes - spec.allocator_limit_bytes
    answer = sum_answer(found, capacity_bytes - outside)
    sentence = (
        f"{_SUM_WORDS[answer]} {format_gib(capacity_bytes)}: {sum_name(found)} {format_gib(needed_bytes(found))}. "
        f"{sum_doubt(found)}."
    )
    return CapacityReport(
        engine=found.engine,
        answer=answer,
        capacity_bytes=capacity_bytes,
        outside_bytes=outside,
        peak_reserved_bytes=found.peak_reserved_bytes,
        death=None,
        sentence=sentence,
        warnings=found.warnings,
    )


def _reserved(verdict: CapacityVerdict) -> int | None:
    if verdict.answer == "out_of_memory":
        return None
    return (verdict.expandable or verdict.replay).peak_reserved_bytes


def _death(job: TrainingJob, recording: Recording, oom: OutOfMemory) -> Death:
    before = [mark for mark in recording.marks if mark.event <= oom.event_index]
    mark = before[-1]
    number = sum(1 for value in recording.events[: oom.event_index + 1] if value > 0) - 1
    op, module = recording.op_of[number], recording.module_of[number]
    if mark.step == 0:
        where = "while the model is loaded"
    else:
        where = f"in step {mark.step}, {describe_instant(mark.phase, op, module, job.optimizer)}"
    why = ""
    if mark.step > 1 and mark.phase != "optimizer":
        why = f"; step {mark.step - 1} fits, step {mark.step} does not: the optimizer's state now exists"
    at = f"{module}: {short_op(op)}" if module else short_op(op)
    exactly = "" if short_op(op) in where else f" ({at})"
    sentence = f"Dies {where}{exactly}, asking for {format_bytes(oom.tried_bytes)}{why}."
    return Death(step=mark.step, phase=mark.phase, op=short_op(op), module=module, oom=oom, sentence=sentence)


def _sentence(verdict: CapacityVerdict, death: Death | None) -> str:
    size = format_gib(verdict.capacity_bytes)
    if verdict.answer == "fits":
        retries = verdict.replay.retries
        tight = f", after giving idle memory back {retries} times" if retries else ""
        return f"Fits in {size}, with {format_gib(verdict.spare_bytes or 0)} to spare{tight}."
    if verdict.answer == "fits_with_expandable_segments":
        return f"Fits in {size} only with {TURN_ON_EXPANDABLE_SEGMENTS}. Without: {death.sentence if death else ''}"
    return f"Does not fit in {size}. {death.sentence if death else ''}"
