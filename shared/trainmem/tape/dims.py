"""The numbers behind a tape's dimension names."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from trainmem.job import Lora, TrainingJob
from trainmem.model import Architecture
from trainmem.model.lora import adapters
from trainmem.tape.claims import fully_sharded
from trainmem.tape.hardware import hardware

__all__ = ["dimensions"]


def dimensions(job: TrainingJob, architecture: Architecture) -> dict[str, int]:
    """Every dimension name that programs use, for one job on one device."""
    b, s, h = job.micro_batch, job.sequence_length, architecture.hidden_size
    d = architecture.head_dim
    rotary = int(architecture.extra.get("rotary_dim") or d)
    chip = hardware(job.device)
    out = {
        "b": b,
        "s": s,
        "h": h,
        "3h": 3 * h,
        "3d": 3 * d,
        "ff": architecture.intermediate_size,
        "v": architecture.vocab_size,
        "positions": architecture.max_positions or 0,
        "labels": next((p.shape[0] for p in architecture.head if p.kind == "head"), 0),
        "token_types": _rows(architecture, "embeddings.token_type_embeddings.weight"),
        "positions_plus_2": (architecture.max_positions or 0) + 2,
        "embedding_width": int(architecture.extra.get("embedding_width") or h),
        "heads": architecture.heads,
        "kv": architecture.kv_heads,
        "d": d,
        "half_d": d // 2,
        "rotary": rotary,
        "half_rotary": rotary // 2,
        "d_rest": d - rotary,
        "2ff": 2 * architecture.intermediate_size,
        "qkv": (architecture.heads + 2 * architecture.kv_heads) * d,
        "q": architecture.heads * d,
        "kvd": architecture.kv_heads * d,
        "one": 1,
        "s_plus_1": s + 1,
        "d_round8": -(-d // 8) * 8,
        "s_round8": -(-s // 8) * 8,
        "s_round32": -(-s // 32) * 32,
        "s_round128": -(-s // 128) * 128,
        "d_flash": -(-d // 32) * 32 if d <= 128 else -(-d // 64) * 64,
        "sm_count": chip.sm_count,
        "threads_per_sm": chip.threads_per_sm,
        "grouped_mm_kernel": int(chip.grouped_mm),
        "capability": 10 * chip.capability[0] + chip.capability[1],
        "cublas_workspace": chip.cublas_workspace_bytes,
        "cublaslt_workspace": chip.cublaslt_workspace_bytes,
    }
    out.update(_parameter_sizes(architecture))
    out["world"] = job.sharding.data_parallel
    if fully_sharded(job):
        out.update(_parameter_rows(architecture))
    out.update(_expert_sizes(architecture))
    if job.lora is not None:
        out["rank"] = job.lora.rank
        out.update(_adapter_sizes(architecture, job.lora))
    return out


def _rows(architecture: Architecture, name: str) -> int:
    """Rows of an embedding table; 0 where there is none."""
    return next((p.shape[0] for p in architecture.embeddings if p.name == name), 0)


@lru_cache(maxsize=512)
def _adapter_sizes(architecture: Architecture, lora: Lora) -> dict[str, int]:
    out: dict[str, int] = {}
    found = adapters(architecture, lora)
    for parts in (found.embeddings, found.final, found.head, *found.blocks.values()):
        for adapter in parts:
            module = adapter.parameter.name.removesuffix(".weight")
            for letter, shape in zip("AB", adapter.shapes, strict=True):
                out[f"p:{module}.lora_{letter}.weight"] = prod(shape)
    return out


def _expert_sizes(architecture: Architecture) -> dict[str, int]:
    """The sizes of a mixture of experts: how many, how many a token goes to, and how wide each is."""
    experts = architecture.extra.get("experts")
    if not experts:
        return {}
    width = int(architecture.extra["moe_intermediate_size"] or 0)
    return {
        "experts": int(experts),
        "top_k": int(architecture.extra["experts_per_token"] or 0),
        "moe": width,
        "2moe": 2 * width,
    }


@lru_cache(maxsize=512)
def _parameter_rows(architecture: Architecture) -> dict[str, int]:
    groups = (architecture.embeddings, architecture.final, architecture.head, *architecture.blocks.values())
    return {f"rows:{parameter.name}": parameter.shape[0] for parts in groups for parameter in parts}


@lru_cache(maxsize=512)
def _parameter_sizes(architecture: Architecture) -> dict[str, int]:
    groups = (architecture.embeddings, architecture.final, architecture.head, *architecture.blocks.values())
    return {f"p:{parameter.name}": prod(parameter.shape) for parts in groups for parameter in parts}
