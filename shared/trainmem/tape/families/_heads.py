"""What follows a decoder's last norm: logits over the vocabulary and their loss."""

from __future__ import annotations

from trainmem.tape import ops
from trainmem.tape.core import Tensor
from trainmem.tape.families._decoder import causal_loss, language_loss
from trainmem.tape.model import Model

__all__ = ["decoder_loss"]


def decoder_loss(model: Model, hidden: Tensor, embedding: str) -> Tensor:
    """The language model's head, tied to ``embedding`` or its own, and its loss."""
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
