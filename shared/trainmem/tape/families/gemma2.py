"""Gemma 2 (transformers: models/gemma2/modeling_gemma2.py): four norms a block, every second block sliding."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from trainmem.tape import ops
from trainmem.tape.families._decoder import (
    ByKind,
    attention_and_weights,
    positions,
    run_blocks,
    token_ids,
    value_copies,
    wanting_gradients,
)
from trainmem.tape.families._heads import decoder_loss
from trainmem.tape.families._rotary_decoder import Tables, gated_mlp
from trainmem.tape.masks import causal_mask, sliding_causal_mask
from trainmem.tape.model import Block, Model
from trainmem.tape.norms import centered_rms_norm
from trainmem.tape.rotary import KEY, QUERY, apply_rotary, rotary_tables
from trainmem.tape.tensor import Tensor

__all__ = ["causal_masks", "forward", "normed_block", "scaled_embedding"]

Attention: TypeAlias = Callable[[Block, Tensor, Tables, Tensor | None], tuple[Tensor, Tensor | None]]


def _attention(
    block: Block, hidden: Tensor, tables: Tables, mask: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    model, tape = block.model, block.model.tape
    one_head = model.structure.one_head
    q = ops.heads_of(tape, block.linear(hidden, "self_attn.q_proj", "q"), QUERY, copies=True)
    k = ops.heads_of(tape, block.linear(hidden, "self_attn.k_proj", "kvd"), KEY, copies=not one_head)
    v = block.linear(hidden, "self_attn.v_proj", "kvd")
    v = ops.heads_of(tape, v, KEY, copies=value_copies(model, mask))
    with tape.module("self_attn.rotary"):
        q, k = apply_rotary(tape, q, k, *tables)
    soft_cap = bool(model.extra("attention_soft_cap"))
    with tape.module("self_attn"):
        out, weights = attention_and_weights(model, q, k, v, mask, soft_cap=soft_cap)
    return block.linear(out, "self_attn.o_proj", "h"), weights


def normed_block(
    block: Block, hidden: Tensor, tables: Tables, mask: Tensor | None, attention: Attention
) -> Tensor:
    """DecoderLayer.forward of Gemma 2 and 3: norms before and after attention and MLP."""
    tape = block.model.tape
    residual = hidden
    hidden = centered_rms_norm(block, hidden, "input_layernorm")
    hidden, _ = attention(block, hidden, tables, mask)
    hidden = centered_rms_norm(block, hidden, "post_attention_layernorm")
    hidden = ops.add(tape, residual, hidden)
    residual = hidden
    hidden = centered_rms_norm(block, hidden, "pre_feedforward_layernorm")
    hidden = gated_mlp(block, hidden)
    hidden = centered_rms_norm(block, hidden, "post_feedforward_layernorm")
    return ops.add(tape, residual, hidden)


def _block(block: Block, hidden: Tensor, tables: Tables, mask: Tensor | None, at: Tensor) -> Tensor:
    return normed_block(block, hidden, tables, mask, _attention)


def scaled_embedding(model: Model, ids: Tensor) -> Tensor:
    """ScaledWordEmbedding: the embedding times the root of the hidden size."""
    embedded = ops.embedding(model.tape, ("b", "s"), model.outside.weight("embed_tokens.weight"), "h", ids)
    casts = model.sharding is not None and model.sharding.casts
    # made in the dtype of the shards, it is cast to that of the gathered table
    cast = model.tape.alloc((), embedded.itemsize, "embedding scale") if casts else None
    scaled = ops.scale(model.tape, embedded, "embedding scale")
    model.tape.save(scaled.node, cast)
    return wanting_gradients(model, scaled)


def causal_masks(model: Model) -> ByKind:
    """A mask for full and one for sliding blocks; both are made, whatever the blocks are."""
    full = causal_mask(model)
    return ByKind({"full_attention": full, "sliding_attention": sliding_causal_mask(model)})


def forward(model: Model) -> Tensor:
    """Gemma2ForCausalLM.forward with labels."""
    tape = model.tape
    ids = token_ids(model)
    embedded = scaled_embedding(model, ids)
    at = positions(tape)
    masks = causal_masks(model)
    tables = rotary_tables(tape, embedded.itemsize)
    hidden = run_blocks(model, embedded, _block, tables, masks, at)
    hidden = centered_rms_norm(model.outside, hidden, "norm")
    del at, embedded, masks, tables
    return decoder_loss(model, hidden, "embed_tokens.weight")
