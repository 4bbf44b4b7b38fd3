"""The answer to one job: its peak, when it comes, and what fills the memory then.

`estimate` is what the command line, the web app and the suites call; `Estimate.to_json` writes the contract's
`trainmem.estimate/1`. `timeline` is one step on a clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from trainmem.allocator import AllocatorSettings
from trainmem.buckets import BUCKETS, Bucket
from trainmem.extras import require_backend
from trainmem.instant import describe_instant
from trainmem.job import JobError, Sharding, TrainingJob
from trainmem.model import UNKNOWN, Resolved, UnknownFamily, resolve
from trainmem.ranks import record_rank
from trainmem.recording import Counters, Recording, counters, most_reserved, read_step
from trainmem.results import error_text, typical_error
from trainmem.tape import Unsupported, fast_figures, record
from trainmem.timeline import CurvePoint, Instant, Timeline, notices
from trainmem.timeline import from_recording as timeline_of
from trainmem.trace_command import trace_command, untraceable
from trainmem.whiteboard import whiteboard

__all__ = [
    "SCHEMA",
    "CurvePoint",
    "Detail",
    "Engine",
    "Estimate",
    "Instant",
    "NotReplayed",
    "Timeline",
    "error_sentence",
    "estimate",
    "from_recording",
    "from_trace",
    "notices",
    "recorded",
    "recording_of",
    "timeline",
]

SCHEMA = "trainmem.estimate/1"
Engine = Literal["whiteboard", "tape", "trace"]
Detail = Literal["fast", "exact"]
STEADY = 3
"""The recorded step that stands for every later one."""
_LEVEL = 2
"""The step from which on allocated memory repeats itself; what the allocator has reserved grows for one more."""


class NotReplayed(JobError):
    """The tape does not know the family or a lever of a job; the message names the command that does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """One answer. Bytes are ints; ``buckets_at_peak`` sums exactly to ``peak_allocated_bytes``.

    ``peak_reserved_bytes`` is None where no allocator was replayed; the trace, which has the time, answers
    `trainmem.recording.most_reserved`.
    """

    engine: Engine
    job: TrainingJob
    parameters: int
    trainable_parameters: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int | None
    peak_phase: str
    peak_instant: str
    buckets_at_peak: dict[Bucket, int]
    phases: dict[str, int]
    first_step_peak_bytes: int
    warnings: tuple[str, ...] = ()
    detail: Detail = "exact"
    over_ranks: bool = False
    """One rank's step, put together from the unsharded one (`trainmem.ranks`)."""

    @property
    def is_sum(self) -> bool:
        """Whether no step of this very job was replayed, so that it may be further off than a replay."""
        return self.over_ranks or self.engine == "whiteboard"

    @property
    def typical_error(self) -> float:
        """The median error of this engine on the published measured rows nearest to the job, as a fraction."""
        return typical_error(self.job, self.engine)

    def to_json(self) -> dict[str, Any]:
        """The contract's object."""
        return {
            "schema": SCHEMA,
            "engine": self.engine,
            "job": self.job.to_json(),
            "parameters": self.parameters,
            "trainable_parameters": self.trainable_parameters,
            "peak_allocated_bytes": self.peak_allocated_bytes,
            "peak_reserved_bytes": self.peak_reserved_bytes,
            "peak_phase": self.peak_phase,
            "peak_instant": self.peak_instant,
            "buckets_at_peak": dict(self.buckets_at_peak),
            "phases": dict(self.phases),
            "first_step": {"peak_allocated_bytes": self.first_step_peak_bytes},
            "typical_error": self.typical_error,
            "warnings": list(self.warnings),
        }


def estimate(
    job: TrainingJob,
    engine: Engine = "tape",
    detail: Detail = "exact",
    *,
    settings: AllocatorSettings | None = None,
) -> Estimate:
    """Answer ``job`` on one rung.

    ``detail`` "fast" rounds to 512 bytes and leaves the allocator out: reserved is None, and blocks lack the rest
    that the allocator does not split off, up to 1 MiB each. That is 0.1% to 2% of a peak, and up to 6% where
    tensors of a few MiB are most of it, as in a tiny model with adapters of rank 4,096. "exact" replays it under
    ``settings``. A sharded job that the tape does not know is answered from the unsharded one's step, over the ranks
    (`trainmem.ranks`). Any other family or lever that it does not know falls back to the whiteboard. The warnings say
    so, and name the command that traces the job. Raises `JobError`.
    """
    if engine == "trace":
        return from_trace(job, recording_of(job, engine), settings=settings)
    resolved = resolve(job)
    if engine == "whiteboard":
        return _from_whiteboard(job, resolved)
    if engine != "tape":
        raise JobError(f"engine: {engine} is not one of whiteboard, tape, trace")
    try:
        if detail == "fast":
            return _fast(job, resolved)
        if fast_figures(job, resolved.architecture).peak_bytes > _MOST_REPLAYED_BYTES:
            return _with_warning(_fast(job, resolved), f"{_TOO_MUCH}; reserved memory is left out")
        if settings is not None:
            return from_recording(
                job, record(job, resolved.architecture), "tape", resolved, settings=settings
            )
        return _read(job, *recorded(job), "tape", resolved)
    except Unsupported as reason:
        over_ranks = _over_ranks(job, detail, settings)
        if over_ranks is not None:
            return _with_warning(over_ranks, f"{reason}; {_OVER_RANKS}. {_who_replays(job)}")
        answer = _from_whiteboard(job, resolved)
        off = f"this is the whiteboard's sum, typically {100 * answer.typical_error:.0f}% off"
        return _with_warning(answer, f"{reason}; {off}. {_who_replays(job)}")


def _who_replays(job: TrainingJob) -> str:
    if untraceable(job) is not None:
        return "Nothing here replays that yet"
    error = typical_error(job, "trace")
    off = "" if error >= 1 else f", typically {error_text(error)} off on measured steps"
    return f"`{trace_command(job)}` replays the real model's code{off}"


def error_sentence(job: TrainingJob, error: float) -> str:
    """What an `Estimate.typical_error` says of ``job``: nothing of a model whose sizes the config does not give.

    Such a config gets the defaults of its class (`Architecture.sizes_by_default`), and the figure is about the
    model that those make.
    """
    try:
        found = resolve(job).architecture
        sizes, by_default = len(found.sizes), len(found.sizes_by_default)
    except JobError:
        sizes = by_default = 0
    if not by_default:
        return f"typical error on measured steps like this one: {error_text(error)}"
    return (
        f"the config gives {sizes - by_default} of the {sizes} sizes that decide this model, and {by_default} "
        f"{'is' if by_default == 1 else 'are'} its class's default{'s' * (by_default > 1)}: the typical error on "
        f"measured steps, {error_text(error)}, holds for the model that the defaults make, which need not be yours"
    )


def _with_warning(answer: Estimate, note: str) -> Estimate:
    return replace(answer, warnings=(*answer.warnings, note))


_MOST_REPLAYED_BYTES = 32 << 40
_TOO_MUCH = "more than 32 TiB, which no allocator has addresses for"


def recorded(job: TrainingJob) -> tuple[Recording, Counters]:
    """The tape's recording of ``job`` and its counters, kept for the last few jobs."""
    return _recorded(job)


@lru_cache(maxsize=8)
def _recorded(job: TrainingJob) -> tuple[Recording, Counters]:
    recording = record(job, resolve(job).architecture)
    return recording, counters(recording)


def recording_of(
    job: TrainingJob, engine: Engine = "tape", *, progress: Callable[[float], None] | None = None
) -> Recording:
    """Three steps of ``job`` as allocations and frees; ``progress`` takes the share of a trace that is done.

    Raises `NotReplayed` where the tape does not know the job, `JobError` where nobody can replay it.
    """
    if engine == "trace":
        return _tracer()(job, progress=progress)
    try:
        if fast_figures(job, resolve(job).architecture).peak_bytes > _MOST_REPLAYED_BYTES:
            raise JobError(f"micro_batch x sequence_length: {_TOO_MUCH}; make them smaller")
        return recorded(job)[0]
    except Unsupported as reason:
        raise NotReplayed(f"{reason}. {_who_replays(job)}") from reason


def _fast(job: TrainingJob, resolved: Resolved) -> Estimate:
    architecture = resolved.architecture
    figures = fast_figures(job, architecture)
    return Estimate(
        engine="tape",
        job=job,
        parameters=figures.parameters,
        trainable_parameters=figures.trainable_parameters,
        peak_allocated_bytes=figures.peak_bytes,
        peak_reserved_bytes=None,
        peak_phase=figures.peak_phase,
        peak_instant=describe_instant(
            figures.peak_phase, figures.peak_op, figures.peak_module, job.optimizer
        ),
        buckets_at_peak=dict(zip(BUCKETS, figures.buckets, strict=True)),
        phases=figures.phases,
        first_step_peak_bytes=figures.first_step_peak_bytes,
        warnings=(*resolved.warnings, *figures.warnings),
        detail="fast",
    )


def from_recording(
    job: TrainingJob,
    recording: Recording,
    engine: Engine,
    resolved: Resolved | None = None,
    *,
    settings: AllocatorSettings | None = None,
) -> Estimate:
    """The answer that a recording of three steps gives when its allocator is replayed."""
    return _read(job, recording, counters(recording, settings=settings), engine, resolved)


def _read(
    job: TrainingJob,
    recording: Recording,
    result: Counters,
    engine: Engine,
    resolved: Resolved | None,
    steady_step: int = STEADY,
) -> Estimate:
    steady = read_step(recording, result, steady_step)
    first = read_step(recording, result, 1)
    warnings = resolved.warnings if resolved is not None else ()
    return Estimate(
        engine=engine,
        job=job,
        parameters=recording.parameters,
        trainable_parameters=recording.trainable_parameters,
        peak_allocated_bytes=steady.peak_allocated_bytes,
        peak_reserved_bytes=steady.peak_reserved_bytes,
        peak_phase=steady.peak_phase,
        peak_instant=describe_instant(steady.peak_phase, steady.peak_op, steady.peak_module, job.optimizer),
        buckets_at_peak=steady.buckets_at_peak,
        phases=steady.phases,
        first_step_peak_bytes=first.peak_allocated_bytes,
        warnings=(*warnings, *recording.warnings),
    )


def timeline(job: TrainingJob, engine: Engine = "tape", *, first_step: bool = False) -> Timeline:
    """One step on a clock. Raises `NotReplayed` where the engine does not know the job."""
    if engine == "trace":
        recording = _tracer()(job)
        return timeline_of(job, recording, counters(recording), first_step=first_step)
    try:
        return timeline_of(job, *recorded(job), first_step=first_step)
    except Unsupported as reason:
        raise NotReplayed(f"{reason}, and the whiteboard has no clock. {_who_replays(job)}") from reason


def _from_whiteboard(job: TrainingJob, resolved: Resolved) -> Estimate:
    board = whiteboard(job, resolved.architecture)
    states = sum(board.buckets[bucket] for bucket in ("weights", "master_weights", "optimizer_state"))
    return Estimate(
        engine="whiteboard",
        job=job,
        parameters=board.parameters,
        trainable_parameters=board.trainable_parameters,
        peak_allocated_bytes=board.peak_bytes,
        peak_reserved_bytes=None,
        peak_phase="backward",
        peak_instant="start of backward, everything taken as alive at once",
        buckets_at_peak=dict(board.buckets),
        phases={
            "start_bytes": states,
            "after_forward_bytes": board.peak_bytes - board.buckets["gradients"],
            "peak_forward_bytes": board.peak_bytes - board.buckets["gradients"],
            "after_backward_bytes": states + board.buckets["gradients"],
            "peak_backward_bytes": board.peak_bytes,
            "after_optimizer_bytes": states + board.buckets["gradients"],
            "peak_optimizer_bytes": states + board.buckets["gradients"],
            "after_zero_grad_bytes": states,
        },
        first_step_peak_bytes=board.peak_bytes - board.buckets["optimizer_state"],
        warnings=resolved.warnings,
    )


_OVER_RANKS = "this is one rank's step put together from the unsharded one, without NCCL's own buffers"


@lru_cache(maxsize=512)
def _over_ranks(job: TrainingJob, detail: Detail, settings: AllocatorSettings | None) -> Estimate | None:
    """One rank of a sharded job; None where the tape does not know the job on one device either."""
    if job.sharding == Sharding():
        return None
    resolved = resolve(job)
    try:
        steps = _LEVEL if detail == "fast" else STEADY
        recording = record_rank(job, resolved.architecture, steps)
    except Unsupported:
        return None
    result = counters(recording, detail="fast")
    if detail == "exact" and max(result.allocated) <= _MOST_REPLAYED_BYTES:
        result = counters(recording, settings=settings)
    found = _read(job, recording, result, "tape", resolved, steps)
    return replace(found, detail="fast" if result.reserved is None else "exact", over_ranks=True)


def _tracer() -> Callable[..., Recording]:
    require_backend("engine: trace")
    from trainmem_backend.trace import trace

    return trace


def from_trace(
    job: TrainingJob, recording: Recording, *, settings: AllocatorSettings | None = None
) -> Estimate:
    """The answer of a trace of three steps of ``job``: reserved is the larger under either order of addresses."""
    try:
        resolved: Resolved | None = resolve(job)
    except UnknownFamily:
        resolved = None
    if resolved is not None and resolved.architecture.family == UNKNOWN:
        # The model's own code knows better than a guess from its config.
        resolved = None
    result = counters(recording, settings=settings)
    answer = _read(job, recording, result, "trace", resolved)
    reserved = most_reserved(recording, result, STEADY, settings=settings)
    return replace(answer, peak_reserved_bytes=reserved)
