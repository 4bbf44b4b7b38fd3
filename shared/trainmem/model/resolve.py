"""From a job to its architecture, with everything checked that needs both."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from trainmem.job import WEIGHT_DTYPE_BYTES, JobError, Lora, Sharding, Task, TrainingJob, _shown
from trainmem.model.architecture import Architecture
from trainmem.model.catalogue import find
from trainmem.model.config import UnknownFamily
from trainmem.model.families import architecture_of
from trainmem.model.lora import adapters
from trainmem.model.unknown import TRACE, UNKNOWN, architecture_of_unknown

__all__ = ["Resolved", "resolve"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    """A job's architecture, a name for it in sentences, and what the user should know of how it was read."""

    name: str
    architecture: Architecture
    warnings: tuple[str, ...]


def resolve(job: TrainingJob) -> Resolved:
    """The architecture that ``job`` trains; its config wins over its model name.

    Raises `JobError` for an unknown model or type, a wrong config, a task the family has no model for, a
    sequence longer than a learned position table, LoRA targets that name no linear layer, and more ways to
    divide the model than it has heads and blocks for. Equal jobs share one result, so that asking again costs
    microseconds.
    """
    targets = None if job.lora is None else job.lora.targets
    found = _resolve(job.model, job._config_text, job.task, job.sequence_length, targets)
    _check_division(job.sharding, found)
    architecture = found.architecture
    more = [
        *_rank_warnings(job),
        *_attention_warnings(job, architecture),
        *_packing_warnings(job, architecture),
    ]
    return replace(found, warnings=(*found.warnings, *more)) if more else found


@lru_cache(maxsize=1024)
def _resolve(
    model: str | None,
    config: str | None,
    task: Task,
    sequence_length: int,
    targets: str | tuple[str, ...] | None,
) -> Resolved:
    name, architecture, notes = _read(model, config, task)
    warnings = [*notes, *architecture.notes]
    limit = architecture.max_positions
    if limit is not None and sequence_length > limit:
        if architecture.extra.get("position_table"):
            raise JobError(
                f"sequence_length: {sequence_length:,} is longer than the position table of {name}; "
                f"allowed are 1 to {limit:,}"
            )
        warnings.append(
            f"sequence_length {sequence_length:,} is beyond the {limit:,} positions that {name} is made for; "
            "its rotary positions go on, and the memory is right, but quality is not promised"
        )
    if targets is not None and targets != "all-linear" and architecture.family == UNKNOWN:
        raise UnknownFamily(
            f"lora.targets: which layers of {name} are called {_shown(targets)} is not known here; {TRACE}"
        )
    if targets is not None:
        warnings += _lora_warnings(name, architecture, targets)
    return Resolved(name=name, architecture=architecture, warnings=tuple(warnings))


@lru_cache(maxsize=256)
def _read(model: str | None, config: str | None, task: Task) -> tuple[str, Architecture, tuple[str, ...]]:
    if config is None:
        entry = find(model or "")
        notes = () if entry.note is None else (f"{entry.name}: {entry.note}",)
        return entry.name, architecture_of(entry.config, task), notes
    values: dict[str, Any] = json.loads(config)
    try:
        architecture = architecture_of(values, task)
    except UnknownFamily as refusal:
        architecture = architecture_of_unknown(values, task, refusal)
        return f"this {values.get('model_type')} config", architecture, _quantization_notes(values)
    return f"this {architecture.family} config", architecture, _quantization_notes(values)


def _quantization_notes(values: dict[str, Any]) -> tuple[str, ...]:
    if not values.get("quantization_config"):
        return ()
    return (
        "config.quantization_config is ignored: the weights are taken as unquantised; for a packed base under "
        "adapters say base_quantization",
    )


def _check_division(sharding: Sharding, found: Resolved) -> None:
    """Tensor parallelism gives every device whole heads, pipeline parallelism every stage whole blocks."""
    heads, layers = found.architecture.heads, found.architecture.layers
    if heads and heads % sharding.tensor_parallel:
        divisors = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
        raise JobError(
            f"sharding.tensor_parallel: {sharding.tensor_parallel} does not divide the {heads} heads of "
            f"{found.name}; allowed are {divisors}"
        )
    if sharding.pipeline_parallel > layers:
        raise JobError(
            f"sharding.pipeline_parallel: {sharding.pipeline_parallel} stages are more than the {layers} blocks of "
            f"{found.name}; allowed are 1 to {layers}"
        )


def _rank_warnings(job: TrainingJob) -> list[str]:
    sharding = job.sharding
    if sharding.mode == "none" and job.precision != "fsdp_mp_bf16":
        return []
    ranks = sharding.data_parallel
    if sharding.mode == "none":
        return [
            f"precision: {job.precision} over 1 device divides nothing; set sharding.mode to fsdp2 and "
            "sharding.data_parallel to how many devices there are"
        ]
    if ranks == 1:
        return [
            f"sharding.data_parallel: {sharding.mode} over 1 device divides nothing; say how many there are"
        ]
    return [f"sharding: the figures are those of one of {ranks:,} devices"]


def _attention_warnings(job: TrainingJob, architecture: Architecture) -> list[str]:
    if architecture.family == "gemma2" and job.attention == "sdpa":
        return [
            "attention: up to transformers 5.20 Gemma 2 runs with sdpa, which is answered here; from 5.21 on it runs "
            "with eager attention whatever is asked for: say eager"
        ]
    return []


def _packing_warnings(job: TrainingJob, architecture: Architecture) -> list[str]:
    """bitsandbytes replaces `nn.Linear`: stacked experts and Conv1D are no such layers and stay as they are."""
    if job.base_quantization == "none":
        return []
    if not architecture.has_linear_layers:
        return [
            f"{job.base_quantization} packs linear layers alone, and this model has none (its layers are Conv1D): its "
            "weights stay as they are"
        ]
    of_kind = {
        kind: sum(part.numel for part in block if part.kind == "expert")
        for kind, block in architecture.blocks.items()
    }
    experts = sum(map(of_kind.__getitem__, architecture.layer_kinds))
    if not experts:
        return []
    whole = architecture.parameter_count
    width = "32 bit; precision bf16 makes that 16" if WEIGHT_DTYPE_BYTES[job.precision] == 4 else "16 bit"
    return [
        f"{job.base_quantization} packs linear layers alone: the stacked experts, {experts / 1e9:.1f} of "
        f"{whole / 1e9:.1f} billion parameters, stay in {width}"
    ]


def _lora_warnings(name: str, architecture: Architecture, targets: str | tuple[str, ...]) -> list[str]:
    found = adapters(architecture, Lora(targets=targets))
    warnings = []
    if found.unmatched:
        missing = _shown(", ".join(found.unmatched))
        warnings.append(f"lora.targets: {missing} names no linear layer of {name} and is left out")
    experts = [part for block in architecture.blocks.values() for part in block if part.kind == "expert"]
    adapted = [a.parameter for block in found.blocks.values() for a in block]
    if targets == "all-linear" and experts and not any(part in adapted for part in experts):
        warnings.append(
            "all-linear leaves the experts without adapters: they are stacked tensors, not layers"
        )
    return warnings
