"""The numbers behind a tape's dimension names."""

from __future__ import annotations

from math import prod

from trainmem.job import TrainingJob
from trainmem.model import Architecture

__all__ = ["dimensions"]


def dimensions(job: TrainingJob, architecture: Architecture) -> dict[str, int]:
    """Every dimension name that programs use, for one job on one device."""
    b, s, h = job.micro_batch, job.sequence_length, architecture.hidden_size
    d = architecture.head_dim
    out = {
        "b": b,
        "s": s,
        "h": h,
        "3h": 3 * h,
        "ff": architecture.intermediate_size,
        "v": architecture.vocab_size,
        "positions": architecture.max_positions or 0,
        "heads": architecture.heads,
        "kv": architecture.kv_heads,
        "d": d,
        "half_d": d // 2,
        "q": architecture.heads * d,
        "kvd": architecture.kv_heads * d,
        "one": 1,
        "s_plus_1": s + 1,
        "s_round32": -(-s // 32) * 32,
        "s_round128": -(-s // 128) * 128,
        "d_round32": -(-d // 32) * 32,
        "sm_count": 132,
        "threads_per_sm": 2048,
        "cublas_workspace": 32 << 20,
        "cublaslt_workspace": 1 << 20,
    }
    for parts in (architecture.embeddings, architecture.final, architecture.head, *architecture.blocks.values()):
        for parameter in parts:
            out[f"p:{parameter.name}"] = prod(parameter.shape)
    return out
