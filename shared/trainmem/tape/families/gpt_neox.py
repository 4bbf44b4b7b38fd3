"""GPT-NeoX, Pythia (transformers: models/gpt_neox/modeling_gpt_neox.py): parallel MLP, partly rotated heads."""

from __future__ import annotations

from trainmem.tape import ops
from trainmem.tape.activations import activation
from trainmem.tape.core import Tape
from trainmem.tape.families._decoder import (
    attention_and_weights,
    masks,
    positions,
    run_blocks,
    token_ids,
    wanting_gradients,
)
from trainmem.tape.families._heads import decoder_loss
from trainmem.tape.families._rotary_decoder import Tables, rotary_width
from trainmem.tape.model import Block, Model
from trainmem.tape.rotary import QUERY, rotary_tables, rotated, rotated_part, with_rest
from trainmem.tape.tensor import Tensor

__all__ = ["forward"]


def _rotary(tape: Tape, q: Tensor, k: Tensor, tables: Tables, width: str) -> tuple[Tensor, Tensor]:
    q_rot, q_pass = rotated_part(tape, q, width)
    k_rot, k_pass = rotated_part(tape, k, width)
    q_embed = rotated(tape, q_rot, *tables)
    k_embed = rotated(tape, k_rot, *tables)
    q_embed = with_rest(tape, q_embed, q_pass)
    k_embed = with_rest(tape, k_embed, k_pass)
    return q_embed, k_embed


def _attention(
    block: Block, hidden: Tensor, tables: Tables, mask: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """One product makes q, k and v of a head side by side; chunk's gradients are concatenated heads first."""
    model, tape = block.model, block.model.tape
    qkv = block.linear(hidden, "attention.query_key_value", "3h")
    qkv = ops.heads_of(tape, qkv, ("b", "heads", "s", "3d"), copies=True)
    q, k, v = ops.split(tape, qkv, [QUERY] * 3)
    with tape.module("attention.rotary"):
        q, k = _rotary(tape, q, k, tables, rotary_width(model))
    with tape.module("attention"):
        out, weights = attention_and_weights(model, q, k, v, mask, heads_first=True)
    return block.linear(out, "attention.dense", "h"), weights


def _mlp(block: Block, x: Tensor) -> Tensor:
    hidden = activation(block.model, block.linear(x, "mlp.dense_h_to_4h", "ff"))
    return block.linear(hidden, "mlp.dense_4h_to_h", "h")


def _block(block: Block, hidden: Tensor, tables: Tables, mask: Tensor | None, at: Tensor) -> Tensor:
    model, tape = block.model, block.model.tape
    drops = model.drops("residual")
    attention, _ = _attention(block, block.layer_norm(hidden, "input_layernorm"), tables, mask)
    attention = ops.dropout(tape, attention, drops)
    if model.extra("parallel_residual"):
        mlp = _mlp(block, block.layer_norm(hidden, "post_attention_layernorm"))
        mlp = ops.dropout(tape, mlp, drops)
        hidden = ops.add(tape, ops.add(tape, mlp, attention), hidden)
    else:
        attention = ops.add(tape, attention, hidden)
        mlp = _mlp(block, block.layer_norm(attention, "post_attention_layernorm"))
        mlp = ops.dropout(tape, mlp, drops)
        hidden = ops.add(tape, mlp, attention)
    return hidden


def forward(model: Model) -> Tensor:
    """GPTNeoXForCausalLM.forward with labels."""
    tape, outside = model.tape, model.outside
    ids = token_ids(model)
    embedded = ops.embedding(tape, ("b", "s"), outside.weight("embed_in.weight"), "h", ids)
    embedded = wanting_gradients(model, embedded)
    at = positions(tape)
    mask = masks(model)
    handed = [ops.dropout(tape, embedded, model.drops("embedding"))]
    tables = rotary_tables(tape, embedded.itemsize, rotary_width(model))
    hidden = run_blocks(model, handed, _block, tables, mask, at)
    hidden = outside.layer_norm(hidden, "final_layer_norm")
    del at, embedded, mask, tables
    return decoder_loss(model, hidden, "embed_in.weight")
