"""Parameter lists that several families share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from trainmem.job import Task
from trainmem.model.architecture import Buffer, Parameter

__all__ = [
    "EMBEDDING_SCALE",
    "SEQUENCE_LABELS",
    "attention_projections",
    "gated_experts",
    "gated_mlp",
    "layer_norm",
    "linear",
    "output_head",
    "rms_norm",
    "rotary_buffers",
]

SEQUENCE_LABELS = 2
"""Labels of the sequence_classification task; the default of transformers' PreTrainedConfig."""

EMBEDDING_SCALE = Buffer("embed_tokens.embed_scale", (), 4, floating=True, persistent=False)
"""Gemma multiplies the embedding's output by the square root of the hidden size, kept as a scalar buffer."""


def linear(name: str, inputs: int, outputs: int, *, bias: bool = False) -> tuple[Parameter, ...]:
    """An ``nn.Linear``: weight (outputs, inputs), then the bias."""
    weight = Parameter(f"{name}.weight", (outputs, inputs), "linear")
    return (weight, Parameter(f"{name}.bias", (outputs,), "bias")) if bias else (weight,)


def layer_norm(name: str, width: int, *, bias: bool = True) -> tuple[Parameter, ...]:
    """An ``nn.LayerNorm``: weight, then the bias."""
    weight = Parameter(f"{name}.weight", (width,), "norm")
    return (weight, Parameter(f"{name}.bias", (width,), "norm")) if bias else (weight,)


def rms_norm(name: str, width: int) -> tuple[Parameter, ...]:
    """An RMSNorm: one weight."""
    return (Parameter(f"{name}.weight", (width,), "norm"),)


def attention_projections(
    *,
    hidden_size: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    qkv_bias: bool = False,
    output_bias: bool = False,
    qk_norm: Literal["head", "width"] | None = None,
) -> tuple[Parameter, ...]:
    """Llama's ``self_attn``: q, k, v and output projections, then the norms of q and k if any."""
    q_width, kv_width = heads * head_dim, kv_heads * head_dim
    parts = (
        *linear("self_attn.q_proj", hidden_size, q_width, bias=qkv_bias),
        *linear("self_attn.k_proj", hidden_size, kv_width, bias=qkv_bias),
        *linear("self_attn.v_proj", hidden_size, kv_width, bias=qkv_bias),
        *linear("self_attn.o_proj", q_width, hidden_size, bias=output_bias),
    )
    if qk_norm is None:
        return parts
    q_norm_width, k_norm_width = (head_dim, head_dim) if qk_norm == "head" else (q_width, kv_width)
    return (*parts, *rms_norm("self_attn.q_norm", q_norm_width), *rms_norm("self_attn.k_norm", k_norm_width))


def gated_mlp(hidden_size: int, intermediate_size: int, *, bias: bool = False) -> tuple[Parameter, ...]:
    """Llama's ``mlp``: gate, up and down projections."""
    return (
        *linear("mlp.gate_proj", hidden_size, intermediate_size, bias=bias),
        *linear("mlp.up_proj", hidden_size, intermediate_size, bias=bias),
        *linear("mlp.down_proj", intermediate_size, hidden_size, bias=bias),
    )


def gated_experts(experts: int, hidden_size: int, intermediate_size: int) -> tuple[Parameter, ...]:
    """Stacked experts: gate and up of all in one tensor, down of all in another."""
    return (
        Parameter("mlp.experts.gate_up_proj", (experts, 2 * intermediate_size, hidden_size), "expert"),
        Parameter("mlp.experts.down_proj", (experts, hidden_size, intermediate_size), "expert"),
    )


def output_head(task: Task, hidden_size: int, vocab_size: int) -> tuple[Parameter, ...]:
    """The last projection of a decoder: ``lm_head`` over the vocabulary, or ``score`` over the labels."""
    if task == "sequence_classification":
        return (Parameter("score.weight", (SEQUENCE_LABELS, hidden_size), "head"),)
    return (Parameter("lm_head.weight", (vocab_size, hidden_size), "head"),)


def rotary_buffers(rotary_dim: int, rope: str | Mapping[str, str]) -> tuple[Buffer, ...]:
    """The frequencies that transformers' rotary embedding registers, and its copy of them, in fp32.

    ``rope``: how they are computed, or how those of each kind of block are.
    """
    types = {"": rope} if isinstance(rope, str) else {f"{kind}_": each for kind, each in rope.items()}
    shape = ((rotary_dim + 1) // 2,)
    return tuple(
        Buffer(f"rotary_emb.{prefix}{name}", shape, 4, floating=True, persistent=False, rope_type=each)
        for prefix, each in types.items()
        for name in ("inv_freq", "original_inv_freq")
    )
