"""BERT (transformers: models/bert/modeling_bert.py), with its classifier or its language model's head."""

from __future__ import annotations

from trainmem.tape import ops
from trainmem.tape.activations import activation
from trainmem.tape.families._decoder import (
    HIDDEN,
    SCORES,
    attention_and_weights,
    causal_loss,
    run_blocks,
    token_ids,
    wanting_gradients,
)
from trainmem.tape.families._heads import classification_loss
from trainmem.tape.masks import unpacked_causal_mask
from trainmem.tape.model import Block, Model
from trainmem.tape.rotary import QUERY
from trainmem.tape.tensor import Tensor

__all__ = ["forward"]


def _embeddings(model: Model) -> Tensor:
    """Word, token type and position embeddings; types and positions are one row for the whole batch."""
    tape, table = model.tape, model.outside
    types = tape.alloc(("s",), 8, "token types")
    words = ops.embedding(
        tape, ("b", "s"), table.weight("embeddings.word_embeddings.weight"), "h", token_ids(model)
    )
    words = wanting_gradients(model, words)
    kinds = ops.embedding(
        tape,
        ("b", "s"),
        table.weight("embeddings.token_type_embeddings.weight"),
        "h",
        types,
        "token_types",
        expanded=True,
    )
    hidden = ops.add(tape, words, kinds)
    at = Tensor(None, ("s",), 8)
    places = ops.embedding(
        tape, ("s",), table.weight("embeddings.position_embeddings.weight"), "h", at, "positions"
    )
    hidden = ops.add(tape, hidden, places)
    hidden = table.layer_norm(hidden, "embeddings.LayerNorm")
    return ops.dropout(tape, hidden, model.drops("embedding"))


def _eager(model: Model, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """BERT's eager_attention_forward: softmax in the scores' dtype, which autocast widens."""
    tape = model.tape
    weights = ops.scale(tape, ops.matmul(tape, q, k, SCORES, copies=(True, True)))
    if mask is not None:
        weights = ops.add(tape, weights, mask)
    weights = ops.softmax(tape, weights, wide=False, fp16=model.structure.loss_scaling)
    weights = ops.dropout(tape, weights, model.drops("attention"))
    output = ops.matmul(tape, weights, v, QUERY, copies=(False, True))
    output = ops.merged_heads(tape, output)
    return tape.view(output, HIDDEN), weights


def _self_attention(block: Block, hidden: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    model, tape = block.model, block.model.tape
    eager = model.structure.attention == "eager"
    masked = mask is not None
    unfused, cut = model.structure.unfused(masked=masked), model.structure.filled_up(masked=masked)
    q = ops.heads_of(tape, block.linear(hidden, "attention.self.query", "q"), QUERY, copies=unfused or cut)
    k = block.linear(hidden, "attention.self.key", "q")
    k = ops.keys_of(tape, k, QUERY, transposed=unfused, copies=cut)
    v = ops.heads_of(tape, block.linear(hidden, "attention.self.value", "q"), QUERY, copies=unfused or cut)
    with tape.module("attention.self"):
        if eager:
            return _eager(model, q, k, v, mask)
        return attention_and_weights(model, q, k, v, mask)


def _output(block: Block, hidden: Tensor, residual: Tensor, name: str) -> Tensor:
    """BertSelfOutput and BertOutput: a linear layer, the residual, and the norm after it."""
    tape = block.model.tape
    hidden = block.linear(hidden, f"{name}.dense", "h")
    hidden = ops.dropout(tape, hidden, block.model.drops("residual"))
    hidden = block.layer_norm(ops.add(tape, hidden, residual), f"{name}.LayerNorm")
    return hidden


def _attention(block: Block, hidden: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    output, weights = _self_attention(block, hidden, mask)
    output = _output(block, output, hidden, "attention.output")
    return output, weights


def _intermediate(block: Block, hidden: Tensor) -> Tensor:
    hidden = block.linear(hidden, "intermediate.dense", "ff")
    hidden = activation(block.model, hidden)
    return hidden


def _block(block: Block, hidden: Tensor, mask: Tensor | None) -> Tensor:
    attention, _ = _attention(block, hidden, mask)
    intermediate = _intermediate(block, attention)
    return _output(block, intermediate, attention, "output")


def _pooled(model: Model, hidden: Tensor) -> Tensor:
    """The first token through a linear layer and tanh."""
    first = ops.first_tokens(model.tape, hidden)
    pooled = model.outside.linear(first, "pooler.dense", "h", flattens=False)
    return ops.unary(model.tape, "tanh", pooled, saves_input=False)


def _predictions(model: Model, hidden: Tensor) -> Tensor:
    """BertLMPredictionHead: a transform and the decoder, tied to the word embeddings, with a bias of its own."""
    tape, outside = model.tape, model.outside
    name = "cls.predictions.transform"
    hidden = outside.linear(hidden, f"{name}.dense", "h")
    hidden = activation(model, hidden)
    hidden = outside.layer_norm(hidden, f"{name}.LayerNorm")
    tied = model.structure.tied
    weight = outside.weight("embeddings.word_embeddings.weight" if tied else "cls.predictions.decoder.weight")
    bias = outside.weight("cls.predictions.bias" if tied else "cls.predictions.decoder.bias")
    with tape.filling("logits"):
        return ops.linear(tape, hidden, weight, "v", bias)


def _bert(model: Model) -> tuple[Tensor, Tensor | None]:
    """BertModel.forward: the last hidden states and, for a classifier, the pooled first token."""
    embedded = _embeddings(model)
    mask = None if model.extra("encoder") else unpacked_causal_mask(model)
    hidden = run_blocks(model, embedded, _block, mask)
    return hidden, _pooled(model, hidden) if model.outside.has("pooler.dense.weight") else None


def forward(model: Model) -> Tensor:
    """BertForSequenceClassification.forward or BertLMHeadModel.forward, with labels."""
    hidden, pooled = _bert(model)
    if pooled is None:
        return causal_loss(model, _predictions(model, hidden))
    pooled = ops.dropout(model.tape, pooled, model.drops("classifier"))
    return classification_loss(model, model.outside.linear(pooled, "classifier", "labels"))
