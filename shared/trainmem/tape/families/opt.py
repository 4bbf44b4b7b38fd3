"""OPT (transformers: models/opt/modeling_opt.py): learned positions counted from a mask of ones, ReLU."""

from __future__ import annotations

from trainmem.tape import kernels, ops
from trainmem.tape.activations import activation
from trainmem.tape.core import Tape
from trainmem.tape.families._decoder import (
    HIDDEN,
    attention_and_weights,
    run_blocks,
    token_ids,
    wanting_gradients,
)
from trainmem.tape.families._heads import decoder_loss
from trainmem.tape.masks import padded_causal_mask
from trainmem.tape.model import Block, Model
from trainmem.tape.rotary import QUERY
from trainmem.tape.tensor import Tensor

__all__ = ["forward"]

BATCH = ("b", "s")


def _counted_positions(model: Model, ones: Tensor) -> Tensor:
    """(cumsum(mask) * mask - 1).long()."""
    tape = model.tape
    counted = tape.alloc(BATCH, ones.itemsize, "positions")
    if model.structure.batch_of_one:
        tape.scratch((kernels.scan_workspace, ("s",), ones.itemsize), "positions")
    product = tape.alloc(BATCH, ones.itemsize, "positions")
    shifted = tape.alloc(BATCH, ones.itemsize, "positions")
    del product
    positions = tape.alloc(BATCH, 8, "positions")
    del shifted, counted
    return positions


def _attention(block: Block, hidden: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    model, tape = block.model, block.model.tape
    masked = mask is not None
    unfused, cut = model.structure.unfused(masked=masked), model.structure.filled_up(masked=masked)
    q = ops.scale(tape, block.linear(hidden, "self_attn.q_proj", "q"))
    q = ops.heads_of(tape, q, QUERY, copies=unfused or cut)
    k = block.linear(hidden, "self_attn.k_proj", "q")
    v = block.linear(hidden, "self_attn.v_proj", "q")
    k = ops.keys_of(tape, k, QUERY, transposed=unfused, copies=cut)
    v = ops.heads_of(tape, v, QUERY, copies=unfused or cut)
    with tape.module("self_attn"):
        out, weights = attention_and_weights(model, q, k, v, mask)
    return block.linear(out, "self_attn.out_proj", "h"), weights


def _block(block: Block, hidden: Tensor, mask: Tensor | None, at: Tensor) -> Tensor:
    model, tape = block.model, block.model.tape
    norm_before = model.extra("post_norm") != "only"
    drops = model.drops("residual")
    residual = hidden
    if norm_before:
        hidden = block.layer_norm(hidden, "self_attn_layer_norm")
    hidden, _ = _attention(block, hidden, mask)
    hidden = ops.dropout(tape, hidden, drops)
    hidden = ops.add(tape, residual, hidden)
    if not norm_before:
        hidden = block.layer_norm(hidden, "self_attn_layer_norm")
    hidden = tape.view(hidden, HIDDEN, "reshape")
    residual = hidden
    if norm_before:
        hidden = block.layer_norm(hidden, "final_layer_norm")
    hidden = block.linear(hidden, "fc1", "ff", flattens=False)
    hidden = activation(model, hidden)
    hidden = block.linear(hidden, "fc2", "h", flattens=False)
    hidden = ops.dropout(tape, hidden, drops)
    hidden = tape.view(ops.add(tape, residual, hidden), HIDDEN)
    if not norm_before:
        hidden = block.layer_norm(hidden, "final_layer_norm")
    return hidden


def _embedded_positions(tape: Tape, outside: Block, at: Tensor) -> Tensor:
    """Rows of the position table, whose first two are unused."""
    shifted = tape.alloc(BATCH, 8, "positions")
    return ops.embedding(
        tape, BATCH, outside.weight("embed_positions.weight"), "h", shifted, "positions_plus_2"
    )


def forward(model: Model) -> Tensor:
    """OPTForCausalLM.forward with labels."""
    tape, outside = model.tape, model.outside
    ids = token_ids(model)
    width = "embedding_width" if outside.has("project_in.weight") else "h"
    embedded = ops.embedding(tape, BATCH, outside.weight("embed_tokens.weight"), width, ids)
    embedded = wanting_gradients(model, embedded)
    ones = tape.alloc(BATCH, 4, "padding mask of ones")
    at = _counted_positions(model, ones)
    mask = padded_causal_mask(model, ones)
    places = _embedded_positions(tape, outside, at)
    if outside.has("project_in.weight"):
        embedded = outside.linear(embedded, "project_in", "h")
    handed = [ops.add(tape, embedded, places, HIDDEN)]
    hidden = run_blocks(model, handed, _block, mask, at)
    if model.extra("final_norm"):
        hidden = outside.layer_norm(hidden, "final_layer_norm")
    if outside.has("project_out.weight"):
        hidden = outside.linear(hidden, "project_out", "embedding_width")
    del ones, at, mask, places, embedded
    return decoder_loss(model, hidden, "embed_tokens.weight")
