"""Phi-3 (transformers: models/phi3/modeling_phi3.py): q, k, v in one product, gate and up in another."""

from __future__ import annotations

from trainmem.tape import ops
from trainmem.tape.activations import activation
from trainmem.tape.core import Tape
from trainmem.tape.families._decoder import attention_and_weights, rms_norm, value_copies
from trainmem.tape.families._rotary_decoder import Tables, rotary_decoder, rotary_width
from trainmem.tape.model import Block, Model
from trainmem.tape.rotary import KEY, QUERY, rotated, rotated_part, with_rest
from trainmem.tape.tensor import Tensor

__all__ = ["forward"]


def _rotary(tape: Tape, q: Tensor, k: Tensor, tables: Tables, width: str) -> tuple[Tensor, Tensor]:
    """The first dimensions of each head are rotated; the rest is concatenated to them, even when it is empty."""
    q_rot, q_pass = rotated_part(tape, q, width)
    k_rot, k_pass = rotated_part(tape, k, width)
    q_embed = with_rest(tape, rotated(tape, q_rot, *tables), q_pass)
    k_embed = with_rest(tape, rotated(tape, k_rot, *tables), k_pass)
    return q_embed, k_embed


def _attention(
    block: Block, hidden: Tensor, tables: Tables, mask: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    model, tape = block.model, block.model.tape
    one_head = model.structure.one_head
    qkv = block.linear(hidden, "self_attn.qkv_proj", "qkv")
    q = ops.slice_of(tape, qkv, ("b", "s", "q"))
    k = ops.slice_of(tape, qkv, ("b", "s", "kvd"))
    v = ops.slice_of(tape, qkv, ("b", "s", "kvd"))
    q = ops.heads_of(tape, q, QUERY, copies=True)
    k = ops.heads_of(tape, k, KEY, copies=not one_head)
    v = ops.heads_of(tape, v, KEY, copies=value_copies(model, mask))
    with tape.module("self_attn.rotary"):
        q, k = _rotary(tape, q, k, tables, rotary_width(model))
    with tape.module("self_attn"):
        out, weights = attention_and_weights(model, q, k, v, mask, heads_first=True)
    return block.linear(out, "self_attn.o_proj", "h"), weights


def _mlp(block: Block, x: Tensor) -> Tensor:
    tape = block.model.tape
    up = block.linear(x, "mlp.gate_up_proj", "2ff")
    gate, up = ops.split(tape, up, [("b", "s", "ff")] * 2)
    up = ops.mul(tape, up, activation(block.model, gate))
    return block.linear(up, "mlp.down_proj", "h")


def _block(block: Block, hidden: Tensor, tables: Tables, mask: Tensor | None, at: Tensor) -> Tensor:
    model, tape = block.model, block.model.tape
    residual = hidden
    hidden = rms_norm(block, hidden, "input_layernorm")
    hidden, _ = _attention(block, hidden, tables, mask)
    hidden = ops.add(tape, residual, ops.dropout(tape, hidden, model.drops("residual")))
    residual = hidden
    hidden = rms_norm(block, hidden, "post_attention_layernorm")
    hidden = _mlp(block, hidden)
    return ops.add(tape, residual, ops.dropout(tape, hidden, model.drops("residual")))


def forward(model: Model) -> Tensor:
    """Phi3ForCausalLM.forward with labels."""
    return rotary_decoder(model, _block, table_width=rotary_width(model))
