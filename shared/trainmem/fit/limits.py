"""The largest micro batch and the longest sequence of a job on a device: the next one does not fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from trainmem.estimate import Detail, Estimate
from trainmem.fit.measured import largest_batch_row
from trainmem.fit.outcome import answer, fits, held_alone, limit_of, needs_at_least, outcome, survives
from trainmem.fit.room import Room
from trainmem.fit.search import largest_from, largest_within
from trainmem.job import Lora, TrainingJob
from trainmem.levers import ALL_LEVERS
from trainmem.model import resolve
from trainmem.recording import without_collections

__all__ = ["Configuration", "Lever", "Limit", "configurations", "largest_micro_batch", "longest_sequence"]

Lever = Literal["micro_batch", "sequence_length"]

_MOST: dict[Lever, int] = {"micro_batch": 1 << 16, "sequence_length": 1 << 22}
_TOKENS_AT_ONCE = 1 << 31
_IN_SIXTEEN_BIT = next(lever for lever in ALL_LEVERS if lever.key == "precision")


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """The largest value of one lever that fits, everything else as in the job.

    ``value`` 0: not even 1 fits. ``is_model_end``: not the memory but the model ends there (its positions).
    ``tight``: see `Outcome`. ``job`` is the job at ``value``, None at 0. ``measured`` is what was found on that
    very device, where it was.
    """

    lever: Lever
    value: int
    tight: bool
    is_model_end: bool
    job: TrainingJob | None
    detail: Detail
    measured: int | None = None

    @property
    def estimate(self) -> Estimate | None:
        """The answer at ``value``, worked out when it is asked for; None at 0."""
        return None if self.job is None else answer(self.job, self.detail)

    def to_json(self) -> dict[str, Any]:
        """For the command line."""
        found = self.estimate
        return {
            "lever": self.lever,
            "largest": self.value,
            "tight": self.tight,
            "ends_with_the_model": self.is_model_end,
            "peak_allocated_bytes": found.peak_allocated_bytes if found else None,
            "peak_reserved_bytes": found.peak_reserved_bytes if found else None,
            "measured": self.measured,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration:
    """A job as it is, or with the levers that its limits are usually asked for."""

    title: str
    job: TrainingJob


def configurations(job: TrainingJob) -> tuple[Configuration, ...]:
    """The job as set and with what its limits are usually asked for, one lever more at a time; each once.

    Full training in pure bf16 rounds stochastically, as the plan's lever does. Adapters are taken in pure bf16, whose
    frozen base has 16 bit; the titles say so. The fused loss stands beside checkpointing, without which logits are no
    limit.
    """
    full: dict[str, Any] = {"checkpointing": "full"}
    fused: dict[str, Any] = full | {"loss": "liger_fused"}
    wanted: list[tuple[str, dict[str, Any]]] = [("as set", {}), ("with checkpointing", full)]
    if job.task == "causal_lm":
        wanted.append(("with checkpointing, fused loss", fused))
    if job.lora is None:
        wanted += [
            ("with AdamW 8-bit", {"optimizer": "adamw8bit"}),
            ("with AdamW 8-bit, checkpointing", full | {"optimizer": "adamw8bit"}),
        ]
        if narrow := _IN_SIXTEEN_BIT.pull(job):
            wanted.append(("in pure bf16, checkpointing", full | {"precision": narrow.precision}))
    if job.task == "causal_lm":
        adapters = {
            "precision": "bf16",
            "optimizer": "adamw",
            "lora": job.lora or Lora(),
            "base_quantization": "none",
        }
        wanted += [
            ("LoRA in bf16, checkpointing", full | adapters),
            ("LoRA in bf16, checkpointing, fused loss", fused | adapters),
        ]
        if resolve(job).architecture.has_linear_layers:
            packed = adapters | {"base_quantization": "nf4"}
            wanted += [
                ("QLoRA in bf16, checkpointing", full | packed),
                ("QLoRA in bf16, checkpointing, fused loss", fused | packed),
            ]
    found: dict[TrainingJob, str] = {}
    for title, changes in wanted:
        found.setdefault(job.with_(**changes), title)
    return tuple(Configuration(title=title, job=changed) for changed, title in found.items())


def largest_micro_batch(job: TrainingJob, room: Room, detail: Detail = "exact") -> Limit:
    """The largest micro batch at the job's sequence length."""
    most = min(_MOST["micro_batch"], _TOKENS_AT_ONCE // job.sequence_length)
    found = _limit(job, room, detail, "micro_batch", most)
    row = None if room.is_budget else largest_batch_row(job, room.device.name)
    return replace(found, measured=int(row.measured["largest_micro_batch"])) if row else found


def longest_sequence(job: TrainingJob, room: Room, detail: Detail = "exact") -> Limit:
    """The longest sequence, to the token, at the job's micro batch and within the model's positions."""
    positions = resolve(job.with_(sequence_length=1)).architecture.max_positions
    most = min(_MOST["sequence_length"], _TOKENS_AT_ONCE // job.micro_batch)
    return _limit(job, room, detail, "sequence_length", min(most, positions or most))


def _limit(job: TrainingJob, room: Room, detail: Detail, lever: Lever, most: int) -> Limit:
    with without_collections():
        return _searched(job, room, detail, lever, most)


def _searched(job: TrainingJob, room: Room, detail: Detail, lever: Lever, most: int) -> Limit:
    def at(value: int) -> TrainingJob:
        return job.with_(**{lever: value})

    def needs(value: int) -> int:
        return needs_at_least(at(value), limit)

    limit = limit_of(job, room)
    value = largest_within(limit, most, needs, start=getattr(job, lever))
    if value and not fits(at(value), room, detail):
        # What the allocator holds above the fast peak is about the same share a little further down.
        share = held_alone(at(value)) / answer(at(value), "fast").peak_allocated_bytes
        guess = largest_within(int(limit / share), value, needs, start=value)
        value = largest_from(guess, value, lambda n: survives(at(n), room), stride=max(1, value // 256))
    if not value:
        return Limit(lever=lever, value=0, tight=False, is_model_end=False, job=None, detail=detail)
    return Limit(
        lever=lever,
        value=value,
        tight=outcome(at(value), room, detail).tight,
        is_model_end=value == most,
        job=at(value),
        detail=detail,
    )
