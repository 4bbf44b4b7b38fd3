"""ModernBERT with a classifier (transformers: models/modernbert/modeling_modernbert.py)."""

from __future__ import annotations

from collections.abc import Sequence

from trainmem.tape import kernels, ops, routing
from trainmem.tape.activations import activation
from trainmem.tape.core import Tape
from trainmem.tape.families._decoder import (
    ByKind,
    attention_and_weights,
    run_blocks,
    token_ids,
    wanting_gradients,
)
from trainmem.tape.families._heads import classification_loss
from trainmem.tape.families._rotary_decoder import Tables
from trainmem.tape.masks import sliding_bidirectional_mask
from trainmem.tape.model import Block, Model
from trainmem.tape.rotary import QUERY, rotary_tables, rotate_half
from trainmem.tape.tensor import Gradients, Tensor

__all__ = ["forward"]


def _rotated(tape: Tape, x: Tensor, tables: Tables) -> Tensor:
    """x.float() * cos + rotate_half(x.float()) * sin, with a copy for each product."""
    cos, sin = tables
    turned = ops.mul(tape, tape.cast(x, 4), cos, x.shape)
    return ops.add(tape, turned, ops.mul(tape, rotate_half(tape, tape.cast(x, 4)), sin, x.shape))


def _rotary(tape: Tape, q: Tensor, k: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
    q_embed = _rotated(tape, q, tables)
    k_embed = _rotated(tape, k, tables)
    return tape.cast(q_embed, q.itemsize), tape.cast(k_embed, k.itemsize)


def _attention(
    block: Block, hidden: Tensor, tables: Tables, mask: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    model, tape = block.model, block.model.tape
    qkv = block.linear(hidden, "attn.Wqkv", "3h")
    q, k, v = ops.split(tape, qkv, [QUERY] * 3)
    with tape.module("attn.rotary"):
        q, k = _rotary(tape, q, k, tables)
    with tape.module("attn"):
        out, weights = attention_and_weights(model, q, k, v, mask)
    out = ops.dropout(tape, block.linear(out, "attn.Wo", "h"), model.drops("attention"))
    return out, weights


def _mlp(block: Block, x: Tensor) -> Tensor:
    model, tape = block.model, block.model.tape
    hidden, gate = ops.split(tape, block.linear(x, "mlp.Wi", "2ff"), [("b", "s", "ff")] * 2)
    product = ops.dropout(tape, ops.mul(tape, activation(model, hidden), gate), model.drops("mlp"))
    return block.linear(product, "mlp.Wo", "h")


def _attention_norm(block: Block, hidden: Tensor) -> Tensor:
    """The first block has none: the embeddings were just normalised."""
    return block.layer_norm(hidden, "attn_norm") if block.has("attn_norm.weight") else hidden


def _block(block: Block, hidden: Tensor, tables: Tables, mask: Tensor | None) -> Tensor:
    tape = block.model.tape
    attention, _ = _attention(block, _attention_norm(block, hidden), tables, mask)
    hidden = ops.add(tape, hidden, attention)
    return ops.add(tape, hidden, _mlp(block, block.layer_norm(hidden, "mlp_norm")))


def _embeddings(model: Model) -> Tensor:
    outside = model.outside
    weight = outside.weight("embeddings.tok_embeddings.weight")
    embedded = ops.embedding(model.tape, ("b", "s"), weight, "h", token_ids(model))
    embedded = wanting_gradients(model, embedded)
    hidden = outside.layer_norm(embedded, "embeddings.norm")
    return ops.dropout(model.tape, hidden, model.drops("embedding"))


def _model(model: Model) -> Tensor:
    """ModernBertModel.forward; the arguments of its masks keep the embeddings until it returns."""
    tape = model.tape
    at = tape.alloc(("s",), 8, "positions")
    embedded = _embeddings(model)
    sliding = sliding_bidirectional_mask(model)
    kinds = sorted(set(model.structure.layer_kinds))
    masks = ByKind({kind: sliding if kind.startswith("sliding") else None for kind in kinds})
    by_type = {
        kind: rotary_tables(tape, embedded.itemsize)
        for kind in sorted({kind.removesuffix("_first") for kind in kinds})
    }
    tables = ByKind({kind: by_type[kind.removesuffix("_first")] for kind in kinds})
    hidden = run_blocks(model, embedded, _block, tables, masks)
    hidden = model.outside.layer_norm(hidden, "final_norm")
    del at
    return hidden


def _head(model: Model, hidden: Tensor) -> Tensor:
    """ModernBertPredictionHead: a linear layer, its activation and a norm."""
    outside = model.outside
    hidden = outside.linear(hidden, "head.dense", "h", flattens=False)
    hidden = activation(model, hidden, "classifier_activation")
    return outside.layer_norm(hidden, "head.norm")


def _mean(tape: Tape, hidden: Tensor) -> Tensor:
    """(hidden * mask).sum(dim=1) / mask.sum(dim=1), the mask all ones."""
    shape, itemsize, pooled = hidden.shape, hidden.itemsize, ("b", "h")

    def masked(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        return [tape.alloc(shape, itemsize, "mul backward")]

    def divided(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        return [tape.alloc(pooled, itemsize, "div backward")]

    mask = tape.alloc(("b", "s"), 1, "mask of ones")
    total = routing.sum_over(
        tape, tape.op("mul", [hidden], shape, itemsize, masked, saves=[mask]), pooled, views_gradient=True
    )
    rule = (pooled, ("s",), False, itemsize)
    staging = tape.scratch((kernels.reduction_staging, *rule), "sum staging")
    semaphores = tape.scratch((kernels.reduction_semaphores, *rule), "sum semaphores")
    del semaphores, staging
    count = tape.alloc(("b", "one"), 8, "tokens")
    tape.scratch((8, "b", "s"), "mask in int64")
    return tape.op("div", [total], pooled, itemsize, divided, saves=[count])


def forward(model: Model) -> Tensor:
    """ModernBertForSequenceClassification.forward with labels, pooled at the first token or over all."""
    hidden = _model(model)
    with model.tape.filling("logits"):
        if model.extra("pooling") == "mean":
            chosen = _mean(model.tape, hidden)
        else:
            chosen = ops.first_tokens(model.tape, hidden)
    pooled = _head(model, chosen)
    pooled = ops.dropout(model.tape, pooled, model.drops("classifier"))
    return classification_loss(model, model.outside.linear(pooled, "classifier", "labels"))
