"""OLMo 2 (transformers: models/olmo2/modeling_olmo2.py): norms after attention and MLP, and on whole q and k."""

from __future__ import annotations

from trainmem.tape import ops
from trainmem.tape.core import Tape
from trainmem.tape.families._decoder import attention_and_weights, value_copies
from trainmem.tape.families._rotary_decoder import Tables, gated_mlp, rotary_decoder
from trainmem.tape.model import Block, Model
from trainmem.tape.norms import wide_rms_norm
from trainmem.tape.rotary import KEY, QUERY, apply_rotary
from trainmem.tape.tensor import Tensor

__all__ = ["forward"]


def _rotary(tape: Tape, q: Tensor, k: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
    """Rotary embedding with fp32 tables: computed in fp32, converted back to the dtype of q and k."""
    q_embed, k_embed = apply_rotary(tape, q, k, *tables)
    return tape.cast(q_embed, q.itemsize), tape.cast(k_embed, k.itemsize)


def _attention(
    block: Block, hidden: Tensor, tables: Tables, mask: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    model, tape = block.model, block.model.tape
    q = wide_rms_norm(block, block.linear(hidden, "self_attn.q_proj", "q"), "self_attn.q_norm")
    k = wide_rms_norm(block, block.linear(hidden, "self_attn.k_proj", "kvd"), "self_attn.k_norm")
    v = block.linear(hidden, "self_attn.v_proj", "kvd")
    q = ops.heads_of(tape, q, QUERY, copies=True)
    k = ops.heads_of(tape, k, KEY, copies=True)
    v = ops.heads_of(tape, v, KEY, copies=value_copies(model, mask))
    with tape.module("self_attn.rotary"):
        q, k = _rotary(tape, q, k, tables)
    with tape.module("self_attn"):
        out, weights = attention_and_weights(model, q, k, v, mask)
    return block.linear(out, "self_attn.o_proj", "h"), weights


def _block(block: Block, hidden: Tensor, tables: Tables, mask: Tensor | None, at: Tensor) -> Tensor:
    tape = block.model.tape
    residual = hidden
    hidden, _ = _attention(block, hidden, tables, mask)
    hidden = wide_rms_norm(block, hidden, "post_attention_layernorm")
    hidden = ops.add(tape, residual, hidden)
    residual = hidden
    hidden = gated_mlp(block, hidden)
    hidden = wide_rms_norm(block, hidden, "post_feedforward_layernorm")
    return ops.add(tape, residual, hidden)


def forward(model: Model) -> Tensor:
    """Olmo2ForCausalLM.forward with labels."""
    return rotary_decoder(model, _block, norm=wide_rms_norm, table_itemsize=4)
