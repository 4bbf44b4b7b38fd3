"""Llama (transformers: models/llama/modeling_llama.py), and Mistral, which differs in nothing that costs memory."""

from __future__ import annotations

from trainmem.tape import ops
from trainmem.tape.core import Tape, Tensor
from trainmem.tape.families._decoder import (
    attention_and_weights,
    language_loss,
    masks,
    positions,
    rms_norm,
    run_blocks,
    token_ids,
)
from trainmem.tape.model import Block, Model

__all__ = ["apply_rotary", "attention", "forward", "rotary_tables"]

QUERY = ("b", "heads", "s", "d")
KEY = ("b", "kv", "s", "d")
TABLE = ("s", "d")


def rotary_tables(tape: Tape, itemsize: int) -> tuple[Tensor, Tensor]:
    """cos and sin of every position, computed in fp32 and cast to the hidden states' dtype."""
    with tape.module("rotary_emb"), tape.no_grad():
        inverse = tape.alloc(("s",), 4, "positions in fp32")
        frequencies = tape.alloc(("s", "half_d"), 4, "frequencies")
        angles = tape.alloc(TABLE, 4, "angles")
        raw = tape.alloc(TABLE, 4, "cos")
        cos = tape.alloc(TABLE, 4, "cos scaled")
        del raw
        raw = tape.alloc(TABLE, 4, "sin")
        sin = tape.alloc(TABLE, 4, "sin scaled")
        del raw
        if itemsize != 4:
            low_cos = tape.alloc(TABLE, itemsize, "cos cast")
            low_sin = tape.alloc(TABLE, itemsize, "sin cast")
            del inverse, frequencies, angles
            return low_cos, low_sin
        del inverse, frequencies, angles
    return cos, sin


def rotate_half(tape: Tape, x: Tensor, shape: tuple[str, ...]) -> Tensor:
    """cat(-x2, x1)."""
    half = (*shape[:-1], "half_d")
    first, second = ops.slice_of(tape, x, half), ops.slice_of(tape, x, half)
    return ops.cat_halves(tape, [ops.neg(tape, second), first], shape)


def apply_rotary(tape: Tape, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary position embedding of queries and keys."""
    rotated = []
    for x, shape in ((q, QUERY), (k, KEY)):
        turned = ops.mul(tape, x, cos, shape)
        rotated.append(ops.add(tape, turned, ops.mul(tape, rotate_half(tape, x, shape), sin, shape)))
        del turned, x
    return rotated[0], rotated[1]


def attention(
    block: Block, hidden: Tensor, tables: tuple[Tensor, Tensor], mask: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """LlamaAttention, and the probabilities that eager attention returns."""
    model, tape = block.model, block.model.tape
    q = ops.heads_of(tape, block.linear(hidden, "self_attn.q_proj", "q"), QUERY, copies=True)
    k = ops.heads_of(tape, block.linear(hidden, "self_attn.k_proj", "kvd"), KEY, copies=True)
    v = ops.heads_of(
        tape, block.linear(hidden, "self_attn.v_proj", "kvd"), KEY, copies=model.structure.unfused
    )
    with tape.module("self_attn.rotary"):
        q, k = apply_rotary(tape, q, k, *tables)
    with tape.module("self_attn"):
        out, weights = attention_and_weights(model, q, k, v, mask)
    return block.linear(out, "self_attn.o_proj", "h"), weights


def _mlp(block: Block, x: Tensor) -> Tensor:
    tape = block.model.tape
    return block.linear(
        ops.mul(
            tape,
            ops.silu(tape, block.linear(x, "mlp.gate_proj", "ff")),
            block.linear(x, "mlp.up_proj", "ff"),
        ),
        "mlp.down_proj",
        "h",
    )


def _block(
    block: Block, hidden: Tensor, tables: tuple[Tensor, Tensor], mask: Tensor | None, at: Tensor
) -> Tensor:
    tape = block.model.tape
    residual = hidden
    hidden = rms_norm(block, hidden, "input_layernorm")
    hidden, _ = attention(block, hidden, tables, mask)
    hidden = ops.add(tape, residual, hidden)
    residual = hidden
    hidden = rms_norm(block, hidden, "post_attention_layernorm")
    hidden = _mlp(block, hidden)
    return ops.add(tape, residual, hidden)


def forward(model: Model) -> Tensor:
    """LlamaForCausalLM.forward with labels."""
    tape, outside = model.tape, model.outside
    ids = token_ids(model)
    embedded = ops.embedding(tape, ("b", "s"), outside.weight("embed_tokens.weight"), "h", ids)
    at = positions(tape)
    mask = masks(model)
    tables = rotary_tables(tape, embedded.itemsize)
    hidden = run_blocks(model, embedded, _block, tables, mask, at)
    hidden = rms_norm(outside, hidden, "norm")
    del at, embedded, mask, tables
    head = outside.weight("embed_tokens.weight" if model.structure.tied else "lm_head.weight")
    return language_loss(model, hidden, head)
