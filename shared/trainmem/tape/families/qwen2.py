"""Qwen2 (transformers: models/qwen2/modeling_qwen2.py): Llama with biases, and sliding blocks on request."""

from __future__ import annotations

from trainmem.tape.families import llama
from trainmem.tape.families._rotary_decoder import masks_by_kind, rotary_decoder
from trainmem.tape.model import Model
from trainmem.tape.tensor import Tensor

__all__ = ["forward"]


def forward(model: Model) -> Tensor:
    """Qwen2ForCausalLM.forward with labels."""
    return rotary_decoder(model, llama.decoder_layer, masks=masks_by_kind)
