"""What decoders of Llama's kind share: embedding, rotary tables, a gated MLP, a last norm and the head."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from trainmem.tape import ops
from trainmem.tape.activations import activation
from trainmem.tape.families._decoder import (
    ByKind,
    masks,
    positions,
    rms_norm,
    run_blocks,
    token_ids,
    wanting_gradients,
)
from trainmem.tape.families._heads import decoder_loss
from trainmem.tape.masks import causal_mask, sliding_causal_mask
from trainmem.tape.model import Block, Model
from trainmem.tape.rotary import rotary_tables
from trainmem.tape.tensor import Tensor

__all__ = ["Norm", "Tables", "gated_mlp", "masks_by_kind", "rotary_decoder", "rotary_width"]

Tables: TypeAlias = tuple[Tensor, Tensor]
"""cos and sin."""

Norm: TypeAlias = Callable[[Block, Tensor, str], Tensor]
"""A norm by its module name."""


def rotary_width(model: Model) -> str:
    """The name of the dimension that is rotated: all of a head, or its first part."""
    return "rotary" if model.structure.partial_rotary else "d"


def gated_mlp(block: Block, x: Tensor) -> Tensor:
    """down_proj(act_fn(gate_proj(x)) * up_proj(x))."""
    tape = block.model.tape
    return block.linear(
        ops.mul(
            tape,
            activation(block.model, block.linear(x, "mlp.gate_proj", "ff")),
            block.linear(x, "mlp.up_proj", "ff"),
        ),
        "mlp.down_proj",
        "h",
    )


def masks_by_kind(model: Model) -> Tensor | ByKind | None:
    """A mask for full blocks and, where there are any, one for sliding blocks."""
    full = causal_mask(model)
    if not any(kind.startswith("sliding") for kind in model.structure.layer_kinds):
        return full
    return ByKind({"full_attention": full, "sliding_attention": sliding_causal_mask(model)})


def rotary_decoder(
    model: Model,
    block: Callable[..., Tensor],
    *,
    norm: Norm = rms_norm,
    masks: Callable[[Model], Tensor | ByKind | None] = masks,
    table_itemsize: int = 0,
    table_width: str = "d",
) -> Tensor:
    """LlamaForCausalLM.forward with labels; ``block`` gets (block, hidden, tables, mask, positions).

    ``table_itemsize``: bytes per element of cos and sin; 0 means those of the hidden states.
    """
    tape, outside = model.tape, model.outside
    ids = token_ids(model)
    embedded = ops.embedding(tape, ("b", "s"), outside.weight("embed_tokens.weight"), "h", ids)
    embedded = wanting_gradients(model, embedded)
    at = positions(tape)
    mask = masks(model)
    tables = rotary_tables(tape, table_itemsize or embedded.itemsize, table_width)
    hidden = run_blocks(model, embedded, block, tables, mask, at)
    hidden = norm(outside, hidden, "norm")
    del at, embedded, mask, tables
    return decoder_loss(model, hidden, "embed_tokens.weight")
