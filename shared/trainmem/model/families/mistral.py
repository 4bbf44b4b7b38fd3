"""Mistral: Llama's blocks without biases; version 0.1 sees a sliding window in every block."""

from __future__ import annotations

from typing import Any

from trainmem.job import Task
from trainmem.model.architecture import Architecture
from trainmem.model.config import ConfigReader
from trainmem.model.families._decoder import build_decoder, read_sizes, uniform
from trainmem.model.families._family import Family
from trainmem.model.families._parts import attention_projections, gated_mlp, rms_norm

__all__ = ["FAMILY"]

_DEFAULTS: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": None,
    "hidden_act": "silu",
    "max_position_embeddings": 4096 * 32,
    "tie_word_embeddings": False,
    "sliding_window": 4096,
    "attention_dropout": 0.0,
}


def _build(config: ConfigReader, task: Task) -> Architecture:
    """Read a MistralConfig; a null ``sliding_window`` means full attention."""
    sizes = read_sizes(config, explicit_head_dim=True)
    layer_kinds, window = uniform(config, sizes.layers)
    block = (
        *attention_projections(
            hidden_size=sizes.hidden_size,
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            head_dim=sizes.head_dim,
        ),
        *gated_mlp(sizes.hidden_size, sizes.intermediate_size),
        *rms_norm("input_layernorm", sizes.hidden_size),
        *rms_norm("post_attention_layernorm", sizes.hidden_size),
    )
    return build_decoder(
        "mistral",
        config,
        task,
        sizes,
        layer_kinds=layer_kinds,
        blocks=dict.fromkeys(layer_kinds, block),
        extra={"activation": config.activation("hidden_act"), "sliding_window": window},
    )


FAMILY = Family(config_class="MistralConfig", defaults=_DEFAULTS, build=_build)
