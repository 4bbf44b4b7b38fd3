"""What follows a model's last norm: logits over the vocabulary, or over labels, and their loss."""

from __future__ import annotations

from collections.abc import Sequence

from trainmem.tape import ops, sorting
from trainmem.tape.core import Tape
from trainmem.tape.families._decoder import causal_loss, language_loss
from trainmem.tape.model import Model
from trainmem.tape.tensor import Gradients, Tensor

__all__ = ["classification_loss", "decoder_loss"]


def decoder_loss(model: Model, hidden: Tensor, embedding: str) -> Tensor:
    """The classifier's head and loss, or the language model's, tied to ``embedding`` or of its own."""
    if model.structure.task == "sequence_classification":
        return _last_token_loss(model, hidden)
    head = model.outside.weight(embedding if model.structure.tied else "lm_head.weight")
    if model.extra("logits_soft_cap") and model.structure.loss == "standard":
        return _capped_loss(model, hidden, head)
    return language_loss(model, hidden, head)


def _capped_loss(model: Model, hidden: Tensor, head: ops.Weight) -> Tensor:
    """Logits through cap * tanh(logits / cap); Liger's fused loss does this inside its kernel."""
    tape = model.tape
    with tape.filling("logits"), tape.module("lm_head"):
        logits = ops.linear(tape, hidden, head, "v")
        logits = ops.scale(tape, logits, "soft cap")
        logits = ops.unary(tape, "tanh", logits, saves_input=False)
        logits = ops.scale(tape, logits, "soft cap")
    return causal_loss(model, logits)


def _last_token_loss(model: Model, hidden: Tensor) -> Tensor:
    """ForSequenceClassification of a decoder (modeling_layers.py): scores at the last token that is no padding."""
    tape = model.tape
    with tape.filling("logits"), tape.module("score"):
        logits = ops.linear(tape, hidden, model.outside.weight("score.weight"), "labels")
    with tape.module("last token"):
        other = tape.alloc(("b", "s"), 1, "tokens that are no padding")
        mask = tape.alloc(("b", "s"), 4, "tokens that are no padding")
        del other
        indices = tape.alloc(("s",), 4, "token indices")
        product = tape.alloc(("b", "s"), 4, "token indices")
        last = tape.alloc(("b",), 8, "last token")
        del product
        pooled = _picked(tape, logits, last)
    loss = classification_loss(model, pooled)
    del mask, indices, last, logits
    return loss


def _picked(tape: Tape, logits: Tensor, last: Tensor) -> Tensor:
    """logits[arange(b), last]; backward adds the gradient into zeros, after sorting the indices.

    ATen/native/cuda/Indexing.cu, index_put_with_sort_kernel.
    """
    shape, itemsize = logits.shape, logits.itemsize

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        out = tape.alloc(shape, itemsize, "index backward")
        wrapped = tape.alloc(("b",), 8, "index_put wrapped rows")
        linear = tape.alloc(("b",), 8, "index_put linear indices")
        del wrapped
        wrapped = tape.alloc(("b",), 8, "index_put wrapped columns")
        columns = tape.alloc(("b",), 8, "index_put columns")
        del wrapped, columns  # added in place
        ordered = tape.alloc(("b",), 8, "index_put sorted indices")
        origin = tape.alloc(("b",), 8, "index_put original indices")
        arange = tape.alloc(("b",), 8, "index_put arange")
        tape.scratch((sorting.indexed_rows_scratch, ("b",), ("b", "s")), "index_put sort")
        del arange, origin, ordered, linear
        return [out]

    rows = tape.alloc(("b",), 8, "batch rows")
    return tape.op("index", [logits], ("b", "labels"), itemsize, backward, saves=[rows, last])


def classification_loss(model: Model, logits: Tensor) -> Tensor:
    """CrossEntropyLoss over (b, labels).

    cross_entropy_loss asks log_softmax for the logits' own dtype, so that autocast leaves it in 16 bits, and
    then runs nll_loss in fp32 (ATen/native/LossNLL.cpp).
    """
    tape = model.tape
    with tape.filling("logits"), tape.module("loss"):
        return _nll_loss(tape, _log_softmax(tape, tape.view(logits, logits.shape)))


def _log_softmax(tape: Tape, logits: Tensor) -> Tensor:
    shape, itemsize = logits.shape, logits.itemsize

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        return [tape.alloc(shape, itemsize, "log_softmax backward")]

    scores = tape.op("log_softmax", [logits], shape, itemsize, backward, saves_output=True)
    return tape.cast(scores, 4) if tape.autocast else scores


def _nll_loss(tape: Tape, scores: Tensor) -> Tensor:
    shape, itemsize = scores.shape, scores.itemsize

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        return [tape.alloc(shape, itemsize, "nll_loss backward")]

    node = tape.node("nll_loss", [scores], backward)
    tape.save(node, scores)
    loss = tape.alloc((), itemsize, "nll_loss")
    total = tape.alloc((), itemsize, "nll_loss total weight")
    loss.node = node
    tape.save(node, total)
    return loss
