"""Qwen2 and Qwen2.5: Llama's blocks with a bias on q, k and v."""

from __future__ import annotations

from typing import Any

from trainmem.job import Task
from trainmem.model.architecture import Architecture
from trainmem.model.config import ConfigReader
from trainmem.model.families._decoder import build_decoder, read_sizes, sliding_after
from trainmem.model.families._family import Family
from trainmem.model.families._parts import attention_projections, gated_mlp, rms_norm

__all__ = ["FAMILY"]

_DEFAULTS: dict[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "layer_types": None,
    "attention_dropout": 0.0,
}


def _build(config: ConfigReader, task: Task) -> Architecture:
    """Read a Qwen2Config; a ``head_dim`` that a config carries counts, as it does in the attention."""
    sizes = read_sizes(config, explicit_head_dim=True)
    layer_kinds, window = sliding_after(config, sizes.layers)
    block = (
        *attention_projections(
            hidden_size=sizes.hidden_size,
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            head_dim=sizes.head_dim,
            qkv_bias=True,
        ),
        *gated_mlp(sizes.hidden_size, sizes.intermediate_size),
        *rms_norm("input_layernorm", sizes.hidden_size),
        *rms_norm("post_attention_layernorm", sizes.hidden_size),
    )
    return build_decoder(
        "qwen2",
        config,
        task,
        sizes,
        layer_kinds=layer_kinds,
        blocks=dict.fromkeys(layer_kinds, block),
        extra={"activation": config.activation("hidden_act"), "qkv_bias": True, "sliding_window": window},
    )


FAMILY = Family(config_class="Qwen2Config", defaults=_DEFAULTS, build=_build)
