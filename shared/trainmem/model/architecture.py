"""What a model is made of, as numbers: its dimensions and every parameter, in registration order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Literal

__all__ = ["Architecture", "Buffer", "Parameter", "ParameterKind"]

ParameterKind = Literal["embedding", "linear", "norm", "bias", "expert", "head", "other"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter tensor.

    ``name`` is relative to its block ("self_attn.q_proj.weight"), or to the model outside blocks. ``kind``
    "linear" marks the 2-d weight of a linear layer that LoRA may adapt and quantisation may pack (stored
    transposed in GPT-2's Conv1D); "expert" marks stacked 3-d expert weights; "head" the output projection.
    """

    name: str
    shape: tuple[int, ...]
    kind: ParameterKind

    @property
    def numel(self) -> int:
        """Elements."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Buffer:
    """One tensor that lives on the device and is not trained: rotary frequencies, position ids.

    ``itemsize_bytes`` is fixed by the module and does not follow the precision of the weights, except that
    ``Module.to(dtype)`` also converts the floating ones. ``persistent`` ones are saved in checkpoints.
    ``rope_type`` says how rotary frequencies are computed; other buffers have none.
    """

    name: str
    shape: tuple[int, ...]
    itemsize_bytes: int
    floating: bool
    persistent: bool
    rope_type: str | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes as the module registers it."""
        return prod(self.shape) * self.itemsize_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """A model's dimensions and parameters; plain numbers, no weights.

    ``layer_kinds`` names each block's kind in order (most models have one kind); ``blocks`` lists the
    parameters of each kind. Two blocks are of one kind when their parameters and their attention are the
    same, so that a step of one costs what a step of the other costs. ``embeddings`` are registered before the
    blocks (OPT's last norm is among them), ``final`` (last norm, pooler) after them, ``head`` last.
    ``buffers`` lie outside the blocks: no family here has any inside.
    ``tied``: the head shares the token embedding's storage and is not counted again.
    ``max_positions`` is what the config promises; only ``extra["position_table"]`` makes it a hard limit.

    ``dropout`` has the rates "embedding", "attention", "residual", "mlp" (inside it) and "classifier", where
    there are any.
    ``extra`` holds what a memory model needs beside the sizes; a key that is absent means no:

    - ``activation``: name of the activation function, as in transformers; ``gated``: a gate multiplies it;
      ``classifier_activation``: that of a classifier's head (only ModernBERT says)
    - ``qkv_bias``, ``output_bias``, ``mlp_bias``: which linear layers have a bias
    - ``norm``: "layer_norm" or "rms_norm"; ``qk_norm``: "head" (each head) or "width" (all heads as one)
    - ``position_table``: positions are a learned table; otherwise ``rotary_dim`` of each head is rotated
    - ``sliding_window``: tokens that blocks of a sliding kind attend to
    - ``experts``, ``experts_per_token``, ``moe_intermediate_size``; ``normalized_routing``: the weights of a
      token's experts are divided by their sum; ``router_jitter``: what experts see is multiplied by noise
    - ``attention_soft_cap``, ``logits_soft_cap``: tanh caps; ``attention_sinks``: a learned logit a head
    - ``embedding_scale``: the embedding's output is multiplied by a constant
    - ``embedding_width``: width of the token embedding, where projections lead to the hidden size and back
    - ``final_norm``: False where no norm follows the last block (only OPT says)
    - ``upcast_attention``: GPT-2 computes attention scores in fp32 outside SDPA
    - ``pooling``: a classifier sees the first token ("cls") or the mean over all ("mean"; only ModernBERT says)
    - ``parallel_residual``: attention and MLP both read the block's input
    - ``post_norm``: norms come after attention and MLP ("only"), or before and after ("both")
    - ``encoder``: attention is not causal
    - ``without_gradient``: a parameter outside the blocks that no step uses

    ``notes`` are sentences about how the config was read. ``sizes`` are the keys that decided the parameters' sizes,
    ``sizes_by_default`` those of them that the config left to its class's default.
    """

    family: str
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_positions: int | None
    tied: bool
    layer_kinds: tuple[str, ...]
    embeddings: tuple[Parameter, ...]
    blocks: dict[str, tuple[Parameter, ...]] = field(hash=False)
    final: tuple[Parameter, ...]
    head: tuple[Parameter, ...]
    buffers: tuple[Buffer, ...] = ()
    notes: tuple[str, ...] = ()
    sizes: tuple[str, ...] = field(default=(), compare=False)
    sizes_by_default: tuple[str, ...] = field(default=(), compare=False)
    dropout: dict[str, float] = field(default_factory=dict, hash=False)
    extra: dict[str, int | float | str | bool | None] = field(default_factory=dict, hash=False)

    @property
    def layers(self) -> int:
        """Number of blocks."""
        return len(self.layer_kinds)

    def parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Every distinct parameter as (path prefix, parameter), in registration order; no tied head."""
        for parameter in self.embeddings:
            yield "", parameter
        for index, kind in enumerate(self.layer_kinds):
            for parameter in self.blocks[kind]:
                yield f"layers.{index}.", parameter
        for parameter in self.final:
            yield "", parameter
        for parameter in self.head:
            if not (self.tied and parameter.kind == "head"):
                yield "", parameter

    @property
    def has_linear_layers(self) -> bool:
        """Whether a 4- or 8-bit base has anything to pack: GPT-2's Conv1D is no linear layer to bitsandbytes."""
        return self.family != "gpt2"

    @property
    def parameter_count(self) -> int:
        """Distinct parameters, tied ones once; equal to the count of the real model."""
        outside = sum(p.numel for p in (*self.embeddings, *self.final))
        head = sum(p.numel for p in self.head if not (self.tied and p.kind == "head"))
        per_kind = {kind: sum(p.numel for p in parts) for kind, parts in self.blocks.items()}
        return outside + head + sum(per_kind[kind] for kind in self.layer_kinds)
