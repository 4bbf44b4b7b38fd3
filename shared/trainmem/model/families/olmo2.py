"""OLMo 2: Llama with norms after attention and MLP, and over all of q and k."""

from __future__ import annotations

from typing import Any

from trainmem.job import Task
from trainmem.model.architecture import Architecture
from trainmem.model.config import ConfigReader
from trainmem.model.families._decoder import build_decoder, read_sizes
from trainmem.model.families._family import Family
from trainmem.model.families._parts import attention_projections, gated_mlp, rms_norm

__all__ = ["FAMILY"]

_DEFAULTS: dict[str, Any] = {
    "vocab_size": 50304,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "attention_dropout": 0.0,
}


def _build(config: ConfigReader, task: Task) -> Architecture:
    sizes = read_sizes(config, explicit_head_dim=True)
    attention_bias = config.flag("attention_bias")
    block = (
        *attention_projections(
            hidden_size=sizes.hidden_size,
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            head_dim=sizes.head_dim,
            qkv_bias=attention_bias,
            output_bias=attention_bias,
            qk_norm="width",
        ),
        *gated_mlp(sizes.hidden_size, sizes.intermediate_size),
        *rms_norm("post_attention_layernorm", sizes.hidden_size),
        *rms_norm("post_feedforward_layernorm", sizes.hidden_size),
    )
    return build_decoder(
        "olmo2",
        config,
        task,
        sizes,
        layer_kinds=("full_attention",) * sizes.layers,
        blocks={"full_attention": block},
        extra={
            "activation": config.activation("hidden_act"),
            "qkv_bias": attention_bias,
            "output_bias": attention_bias,
            "qk_norm": "width",
            "post_norm": "only",
        },
    )


FAMILY = Family(config_class="Olmo2Config", defaults=_DEFAULTS, build=_build)
