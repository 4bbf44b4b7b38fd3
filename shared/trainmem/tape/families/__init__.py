"""One forward pass a family, in the shape of its transformers source."""

from __future__ import annotations

from collections.abc import Callable

from trainmem.tape.families import (
    bert,
    gemma2,
    gemma3,
    gpt2,
    gpt_neox,
    gpt_oss,
    llama,
    mixtral,
    modernbert,
    olmo2,
    opt,
    phi3,
    qwen2,
    qwen3,
    qwen3_moe,
)
from trainmem.tape.model import Model
from trainmem.tape.tensor import Tensor

__all__ = ["FIRST_OF_ITS_KIND", "FORWARD"]

FORWARD: dict[str, Callable[[Model], Tensor]] = {
    "bert": bert.forward,
    "gemma2": gemma2.forward,
    "gemma3_text": gemma3.forward,
    "gpt2": gpt2.forward,
    "gpt_neox": gpt_neox.forward,
    "llama": llama.forward,
    "mistral": llama.forward,
    "gpt_oss": gpt_oss.forward,
    "mixtral": mixtral.forward,
    "modernbert": modernbert.forward,
    "qwen2": qwen2.forward,
    "qwen3": qwen3.forward,
    "qwen3_moe": qwen3_moe.forward,
    "olmo2": olmo2.forward,
    "opt": opt.forward,
    "phi3": phi3.forward,
}

FIRST_OF_ITS_KIND: dict[str, str] = {
    family: next(first for first, other in FORWARD.items() if other is forward)
    for family, forward in FORWARD.items()
}
"""The family whose forward pass a family shares: their structures are equal where nothing else differs."""
