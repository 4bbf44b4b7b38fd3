"""GPT-2 (transformers: models/gpt2/modeling_gpt2.py)."""

from __future__ import annotations

from trainmem.tape import ops
from trainmem.tape.activations import activation
from trainmem.tape.families._decoder import (
    HIDDEN,
    QUERY,
    SCORES,
    attend,
    masks,
    positions,
    run_blocks,
    token_ids,
    wanting_gradients,
)
from trainmem.tape.families._heads import decoder_loss
from trainmem.tape.model import Block, Model
from trainmem.tape.tensor import Tensor

__all__ = ["forward"]


def _attention(block: Block, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    model, tape = block.model, block.model.tape
    qkv = block.linear(x, "attn.c_attn", "3h", conv1d=True)
    q, k, v = _heads(block, qkv, mask)
    weights: Tensor | None = None
    if model.structure.attention == "eager":
        out, weights = _eager(block, q, k, v, mask)
    else:
        out = attend(model, q, k, v, mask)
    out = block.linear(out, "attn.c_proj", "h", conv1d=True)
    return ops.dropout(tape, out, model.drops("residual")), weights


def _heads(block: Block, qkv: Tensor, mask: Tensor | None) -> list[Tensor]:
    """Queries, keys and values of each head, as views; products leave their gradients in another order."""
    tape = block.model.tape
    q, k, v = ops.split(tape, qkv, [("b", "s", "h")] * 3)
    structure, masked = block.model.structure, mask is not None
    unfused, cut = structure.unfused(masked=masked), structure.filled_up(masked=masked)
    k = ops.heads_of(tape, k, QUERY, copies=cut)
    v = ops.heads_of(tape, v, QUERY, copies=unfused or cut)
    q = ops.heads_of(tape, q, QUERY, copies=unfused or cut)
    return [q, k, v]


def _eager(block: Block, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """GPT-2's eager_attention_forward."""
    model, tape = block.model, block.model.tape
    with tape.module("attn"):
        weights = ops.scale(tape, ops.matmul(tape, q, k, SCORES, copies=(True, True)))
        weights = ops.add(tape, weights, mask) if mask is not None else weights
        weights = ops.softmax(tape, weights, wide=False, fp16=model.structure.loss_scaling)
        weights = tape.cast(weights, v.itemsize)
        weights = ops.dropout(tape, weights, model.drops("attention"))
        output = ops.merged_heads(tape, ops.matmul(tape, weights, v, QUERY, copies=(False, True)))
        return tape.view(output, ("b", "s", "h")), weights


def _mlp(block: Block, x: Tensor) -> Tensor:
    tape = block.model.tape
    hidden = block.linear(x, "mlp.c_fc", "ff", conv1d=True)
    with tape.module("mlp"):
        hidden = activation(block.model, hidden)
    hidden = block.linear(hidden, "mlp.c_proj", "h", conv1d=True)
    return ops.dropout(tape, hidden, block.model.drops("residual"))


def _block(block: Block, x: Tensor, mask: Tensor | None, at: Tensor) -> Tensor:
    tape = block.model.tape
    residual = x
    hidden = block.layer_norm(x, "ln_1")
    attention, _ = _attention(block, hidden, mask)
    hidden = ops.add(tape, attention, residual)
    residual = hidden
    hidden = block.layer_norm(hidden, "ln_2")
    feed_forward = _mlp(block, hidden)
    hidden = ops.add(tape, residual, feed_forward)
    return hidden


def _look_for_padding(model: Model) -> None:
    """warn_if_padding_and_no_attention_mask: pad_token_id in input_ids[:, [-1, 0]], where that id is set."""
    if model.structure.task == "sequence_classification":
        tape = model.tape
        columns = tape.scratch((16,), "padding check columns")
        ends = tape.scratch((16, "b"), "padding check")
        del columns
        same = tape.scratch((2, "b"), "padding check")
        found = tape.scratch((1,), "padding check")
        del same, found, ends


def forward(model: Model) -> Tensor:
    """GPT2LMHeadModel.forward with labels."""
    tape, outside = model.tape, model.outside
    ids = token_ids(model)
    _look_for_padding(model)
    tokens = ops.embedding(tape, ("b", "s"), outside.weight("wte.weight"), "h", ids)
    tokens = wanting_gradients(model, tokens)
    at = positions(tape)
    places = ops.embedding(tape, ("s",), outside.weight("wpe.weight"), "h", at, "positions")
    hidden = ops.add(tape, tokens, places, HIDDEN)
    mask = masks(model)
    hidden = ops.dropout(tape, hidden, model.drops("embedding"))
    handed = [hidden]
    del hidden
    hidden = run_blocks(model, handed, _block, mask, at)
    hidden = outside.layer_norm(hidden, "ln_f")
    del tokens, places, mask, at
    return decoder_loss(model, hidden, "wte.weight")
