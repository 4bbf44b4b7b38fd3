"""What a model is made of, as numbers: its dimensions and every parameter in the order modules register them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Literal

__all__ = ["Architecture", "Parameter", "ParameterKind"]

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """A model's dimensions and parameters; plain numbers, no weights.

    ``layer_kinds`` names each block's kind in order (most models have one kind); ``blocks`` lists the parameters
    of each kind. ``embeddings`` come before the blocks, ``final`` (last norm, pooler) after them, ``head`` last.
    ``tied``: the head shares the token embedding's storage and is not counted again.
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
    dropout: dict[str, float] = field(default_factory=dict, hash=False)
    extra: dict[str, int | float | str | bool | None] = field(default_factory=dict, hash=False)

    @property
    def layers(self) -> int:
        """Number of blocks."""
        return len(self.layer_kinds)

    def parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Every distinct parameter as (path prefix, parameter), in registration order; a tied head is left out."""
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
    def parameter_count(self) -> int:
        """Distinct parameters, tied ones once; equal to the count of the real model."""
        outside = sum(p.numel for p in (*self.embeddings, *self.final))
        head = sum(p.numel for p in self.head if not (self.tied and p.kind == "head"))
        per_kind = {kind: sum(p.numel for p in parts) for kind, parts in self.blocks.items()}
        return outside + head + sum(per_kind[kind] for kind in self.layer_kinds)
