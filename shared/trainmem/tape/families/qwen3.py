"""Qwen3 (transformers: models/qwen3/modeling_qwen3.py): Llama with a norm on every head of q and k."""

from __future__ import annotations

from trainmem.tape import ops
from trainmem.tape.families._decoder import attention_and_weights, rms_norm, value_copies
from trainmem.tape.families._rotary_decoder import Tables, gated_mlp, masks_by_kind, rotary_decoder
from trainmem.tape.model import Block, Model
from trainmem.tape.rotary import KEY, QUERY, apply_rotary
from trainmem.tape.tensor import Tensor

__all__ = ["attention", "forward"]

PER_HEAD = {"q": ("b", "s", "heads", "d"), "k": ("b", "s", "kv", "d")}


def _normed_heads(block: Block, hidden: Tensor, which: str, features: str) -> Tensor:
    """q_norm(q_proj(hidden).view(hidden_shape)), or the same for keys.

    The gradient comes back in the memory order of rotary embedding, heads before positions; viewing it as one
    row a token copies it.
    """
    projected = block.linear(hidden, f"self_attn.{which}_proj", features)
    heads = ops.heads_of(block.model.tape, projected, PER_HEAD[which], copies=True)
    return rms_norm(block, heads, f"self_attn.{which}_norm")


def attention(
    block: Block, hidden: Tensor, tables: Tables, mask: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Qwen3Attention, and the probabilities that eager attention returns."""
    model, tape = block.model, block.model.tape
    q = tape.view(_normed_heads(block, hidden, "q", "q"), QUERY, "transpose")
    k = tape.view(_normed_heads(block, hidden, "k", "kvd"), KEY, "transpose")
    v = block.linear(hidden, "self_attn.v_proj", "kvd")
    v = ops.heads_of(tape, v, KEY, copies=value_copies(model, mask))
    with tape.module("self_attn.rotary"):
        q, k = apply_rotary(tape, q, k, *tables)
    with tape.module("self_attn"):
        out, weights = attention_and_weights(model, q, k, v, mask)
    return block.linear(out, "self_attn.o_proj", "h"), weights


def _block(block: Block, hidden: Tensor, tables: Tables, mask: Tensor | None, at: Tensor) -> Tensor:
    tape = block.model.tape
    residual = hidden
    hidden = rms_norm(block, hidden, "input_layernorm")
    hidden, _ = attention(block, hidden, tables, mask)
    hidden = ops.add(tape, residual, hidden)
    residual = hidden
    hidden = rms_norm(block, hidden, "post_attention_layernorm")
    hidden = gated_mlp(block, hidden)
    return ops.add(tape, residual, hidden)


def forward(model: Model) -> Tensor:
    """Qwen3ForCausalLM.forward with labels."""
    return rotary_decoder(model, _block, masks=masks_by_kind)
