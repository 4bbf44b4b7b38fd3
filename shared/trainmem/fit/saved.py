"""What blocks keep for the backward pass, at the least: what autograd cannot spare, whatever the kernels."""

from __future__ import annotations

from functools import lru_cache

from trainmem.job import ACTIVATION_DTYPE_BYTES, Lora, TrainingJob
from trainmem.model import Architecture
from trainmem.model.lora import adapters
from trainmem.tape.claims import Unsupported, check_claims
from trainmem.tape.structure import attention_kernels

__all__ = ["is_replayed", "kept_a_token", "kept_casts"]

_COMPUTED = 4
"""fp32, in which norms compute and adapters multiply."""


def is_replayed(job: TrainingJob, architecture: Architecture) -> bool:
    """Whether the tape runs this very job, so that its tensors are counted and not summed or shared out."""
    try:
        check_claims(job, architecture)
    except Unsupported:
        return False
    return True


def kept_a_token(job: TrainingJob, architecture: Architecture) -> int:
    """Bytes a token that all blocks hold when the backward pass starts, at least.

    Their inputs under checkpoints; without, the inner tensors that `_attention`, `_mlp`, `_norms` and `_adapters`
    count for the decoders that the tape knows. Leaves out: statistics, masks, experts.
    """
    size, layers = ACTIVATION_DTYPE_BYTES[job.precision], architecture.layers
    inputs = layers * size * architecture.hidden_size
    if job.checkpointing != "none":
        return inputs if job.checkpointing == "full" else 0
    is_known = is_replayed(job, architecture) and not architecture.extra.get("encoder")
    if not is_known or (job.lora is not None and job.precision != "bf16"):
        return inputs
    inner = _attention(job, architecture, size) + _mlp(job, architecture, size)
    return layers * (inner + _norms(job, architecture, size)) + _adapters(architecture, job.lora)


def _attention(job: TrainingJob, architecture: Architecture, size: int) -> int:
    """Queries, keys, values and the result; where scores are a tensor, their softmax.

    Queries and keys twice where fused attention takes rotated copies of them out of one tensor that its values keep
    alive, and in fp32 where they have norms.
    """
    extra, head = architecture.extra, architecture.head_dim
    rotated = (architecture.heads + architecture.kv_heads) * head
    eager = job.attention == "eager" or bool(extra.get("attention_sinks"))
    scores = eager or (attention_kernels(job, architecture)[0] == "math" and not extra.get("sliding_window"))
    kept = 2 * size * rotated + (size * architecture.heads * job.sequence_length if scores else 0)
    if not eager and extra.get("rotary_dim") and _is_fused(architecture):
        kept += size * rotated
    if extra.get("qk_norm"):
        kept += _COMPUTED * rotated
    return kept


def _is_fused(architecture: Architecture) -> bool:
    """Whether one matrix makes queries, keys and values."""
    rows = (architecture.heads + 2 * architecture.kv_heads) * architecture.head_dim
    return any(
        p.kind == "linear" and p.shape[0] == rows for block in architecture.blocks.values() for p in block
    )


def _mlp(job: TrainingJob, architecture: Architecture, size: int) -> int:
    """Gate, activation, up and product, or the activation and its input, which ReLU does not need.

    The last is what the second matrix multiplies: an adapter keeps its own copy in place of it.
    """
    extra = architecture.extra
    if extra.get("experts"):
        return 0
    tensors = 4 if extra.get("gated") else 1 if extra.get("activation") == "relu" else 2
    return (tensors - (job.lora is not None)) * size * architecture.intermediate_size


def _norms(job: TrainingJob, architecture: Architecture, size: int) -> int:
    """An RMSNorm around fp32 keeps an fp32 copy, and where its weight trains the normed value and, as the next
    matrix's input, the result; a LayerNorm its input alone."""
    hidden, extra = architecture.hidden_size, architecture.extra
    if extra.get("norm") != "rms_norm":
        return size * hidden * (1 if job.lora is not None else 3)
    norms = 4 if extra.get("post_norm") == "both" else 2
    if job.lora is not None:
        return norms * _COMPUTED * hidden
    if size == _COMPUTED:
        return (2 * norms + 2) * _COMPUTED * hidden
    wide = job.precision.startswith("amp")
    return norms * (_COMPUTED + (_COMPUTED if wide else size) + size) * hidden


@lru_cache(maxsize=512)
def _adapters(architecture: Architecture, lora: Lora | None) -> int:
    """Of every adapted layer an fp32 copy of its input, and what the first matrix makes of it."""
    if lora is None:
        return 0
    found = adapters(architecture, lora)
    of_kind = {
        kind: sum(a.shapes[0][-1] + lora.rank for a in block if a.parameter.kind == "linear")
        for kind, block in found.blocks.items()
    }
    return _COMPUTED * sum(of_kind[kind] for kind in found.layer_kinds)


def kept_casts(job: TrainingJob, architecture: Architecture) -> int:
    """Bytes of the 16-bit copies that autocast makes of the blocks' matrices, kept for backward without checkpoints."""
    trains = job.lora is None and job.precision.startswith("amp") and job.checkpointing == "none"
    return _cast_bytes(architecture) if trains and is_replayed(job, architecture) else 0


@lru_cache(maxsize=512)
def _cast_bytes(architecture: Architecture) -> int:
    of_kind = {
        kind: sum(p.numel for p in block if p.kind == "linear") for kind, block in architecture.blocks.items()
    }
    return 2 * sum(of_kind[kind] for kind in architecture.layer_kinds)
