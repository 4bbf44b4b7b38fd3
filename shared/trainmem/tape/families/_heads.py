"""What follows a decoder's last norm: logits over the vocabulary, or over the labels, and their loss."""

from __future__ import annotations

from trainmem.tape.core import Tensor
from trainmem.tape.families._decoder import language_loss
from trainmem.tape.model import Model

__all__ = ["decoder_loss"]


def decoder_loss(model: Model, hidden: Tensor, embedding: str) -> Tensor:
    """The language model's head, tied to ``embedding`` or its own, and its loss."""
    head = model.outside.weight(embedding if model.structure.tied else "lm_head.weight")
    return language_loss(model, hidden, head)
