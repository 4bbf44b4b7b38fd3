"""Gemma 3, text (transformers: models/gemma3/modeling_gemma3.py): Gemma 2 with norms on each head of q and k."""

from __future__ import annotations

from trainmem.tape import ops
from trainmem.tape.families._decoder import (
    ByKind,
    attention_and_weights,
    positions,
    run_blocks,
    token_ids,
    value_copies,
)
from trainmem.tape.families._heads import decoder_loss
from trainmem.tape.families._rotary_decoder import Tables
from trainmem.tape.families.gemma2 import causal_masks, normed_block, scaled_embedding
from trainmem.tape.model import Block, Model
from trainmem.tape.norms import centered_rms_norm
from trainmem.tape.rotary import KEY, QUERY, apply_rotary, rotary_tables
from trainmem.tape.tensor import Tensor

__all__ = ["forward"]


def _attention(
    block: Block, hidden: Tensor, tables: Tables, mask: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    model, tape = block.model, block.model.tape
    one_head = model.structure.one_head
    q = ops.heads_of(tape, block.linear(hidden, "self_attn.q_proj", "q"), QUERY, copies=True)
    k = ops.heads_of(tape, block.linear(hidden, "self_attn.k_proj", "kvd"), KEY, copies=not one_head)
    v = block.linear(hidden, "self_attn.v_proj", "kvd")
    v = ops.heads_of(tape, v, KEY, copies=value_copies(model, mask))
    q = centered_rms_norm(block, q, "self_attn.q_norm")
    k = centered_rms_norm(block, k, "self_attn.k_norm")
    with tape.module("self_attn.rotary"):
        q, k = apply_rotary(tape, q, k, *tables)
    with tape.module("self_attn"):
        out, weights = attention_and_weights(model, q, k, v, mask)
    return block.linear(out, "self_attn.o_proj", "h"), weights


def _block(block: Block, hidden: Tensor, tables: Tables, mask: Tensor | None, at: Tensor) -> Tensor:
    return normed_block(block, hidden, tables, mask, _attention)


def forward(model: Model) -> Tensor:
    """Gemma3ForCausalLM.forward with labels."""
    tape = model.tape
    ids = token_ids(model)
    embedded = scaled_embedding(model, ids)
    at = positions(tape)
    masks = causal_masks(model)
    kinds = sorted(set(model.structure.layer_kinds))
    tables = ByKind({kind: rotary_tables(tape, embedded.itemsize) for kind in kinds})
    hidden = run_blocks(model, embedded, _block, tables, masks, at)
    hidden = centered_rms_norm(model.outside, hidden, "norm")
    del at, embedded, masks, tables
    return decoder_loss(model, hidden, "embed_tokens.weight")
