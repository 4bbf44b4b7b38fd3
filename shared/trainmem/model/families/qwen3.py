"""Qwen3: Llama's blocks with a norm on every head of q and k, and a head size of its own."""

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
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "layer_types": None,
    "attention_dropout": 0.0,
}


def _build(config: ConfigReader, task: Task) -> Architecture:
    """Read a Qwen3Config."""
    sizes = read_sizes(config, explicit_head_dim=True)
    layer_kinds, window = sliding_after(config, sizes.layers)
    attention_bias = config.flag("attention_bias")
    block = (
        *attention_projections(
            hidden_size=sizes.hidden_size,
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            head_dim=sizes.head_dim,
            qkv_bias=attention_bias,
            output_bias=attention_bias,
            qk_norm="head",
        ),
        *gated_mlp(sizes.hidden_size, sizes.intermediate_size),
        *rms_norm("input_layernorm", sizes.hidden_size),
        *rms_norm("post_attention_layernorm", sizes.hidden_size),
    )
    return build_decoder(
        "qwen3",
        config,
        task,
        sizes,
        layer_kinds=layer_kinds,
        blocks=dict.fromkeys(layer_kinds, block),
        extra={
            "activation": config.activation("hidden_act"),
            "qkv_bias": attention_bias,
            "output_bias": attention_bias,
            "qk_norm": "head",
            "sliding_window": window,
        },
    )


FAMILY = Family(config_class="Qwen3Config", defaults=_DEFAULTS, build=_build)
