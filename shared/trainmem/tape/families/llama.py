"""Llama (transformers: models/llama/modeling_llama.py), and Mistral, which differs in nothing that costs memory."""

from __future__ import annotations

from trainmem.tape import ops
from trainmem.tape.families._decoder import attention_and_weights, rms_norm, value_copies
from trainmem.tape.families._rotary_decoder import Tables, gated_mlp, rotary_decoder
from trainmem.tape.model import Block, Model
from trainmem.tape.rotary import KEY, QUERY, apply_rotary
from trainmem.tape.tensor import Tensor

__all__ = ["attention", "decoder_layer", "forward"]


def attention(
    block: Block, hidden: Tensor, tables: Tables, mask: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """LlamaAttention, and the probabilities that eager attention returns."""
    model, tape = block.model, block.model.tape
    q = ops.heads_of(tape, block.linear(hidden, "self_attn.q_proj", "q"), QUERY, copies=True)
    k = ops.heads_of(tape, block.linear(hidden, "self_attn.k_proj", "kvd"), KEY, copies=True)
    v = block.linear(hidden, "self_attn.v_proj", "kvd")
    v = ops.heads_of(tape, v, KEY, copies=value_copies(model, mask))
    with tape.module("self_attn.rotary"):
        q, k = apply_rotary(tape, q, k, *tables)
    with tape.module("self_attn"):
        out, weights = attention_and_weights(model, q, k, v, mask)
    return block.linear(out, "self_attn.o_proj", "h"), weights


def decoder_layer(block: Block, hidden: Tensor, tables: Tables, mask: Tensor | None, at: Tensor) -> Tensor:
    """LlamaDecoderLayer."""
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
    """LlamaForCausalLM.forward with labels."""
    return rotary_decoder(model, decoder_layer)
