"""Mixtral: Mistral with a router and stacked experts in place of the MLP."""

from __future__ import annotations

from typing import Any

from trainmem.job import Task
from trainmem.model.architecture import Architecture, Parameter
from trainmem.model.config import ConfigReader
from trainmem.model.families._decoder import build_decoder, read_sizes, uniform
from trainmem.model.families._family import Family
from trainmem.model.families._parts import attention_projections, gated_experts, rms_norm

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
    "sliding_window": None,
    "attention_dropout": 0.0,
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
    "router_jitter_noise": 0.0,
}


def _build(config: ConfigReader, task: Task) -> Architecture:
    sizes = read_sizes(config, explicit_head_dim=True)
    layer_kinds, window = uniform(config, sizes.layers)
    experts = config.experts("num_local_experts")
    block = (
        *attention_projections(
            hidden_size=sizes.hidden_size,
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            head_dim=sizes.head_dim,
        ),
        Parameter("mlp.gate.weight", (experts, sizes.hidden_size), "other"),
        *gated_experts(experts, sizes.hidden_size, sizes.intermediate_size),
        *rms_norm("input_layernorm", sizes.hidden_size),
        *rms_norm("post_attention_layernorm", sizes.hidden_size),
    )
    return build_decoder(
        "mixtral",
        config,
        task,
        sizes,
        layer_kinds=layer_kinds,
        blocks=dict.fromkeys(layer_kinds, block),
        extra={
            "activation": config.activation("hidden_act"),
            "sliding_window": window,
            "experts": experts,
            "experts_per_token": config.experts_per_token(experts),
            "moe_intermediate_size": sizes.intermediate_size,
            # Fixed in the router's code.
            "normalized_routing": True,
            "router_jitter": config.fraction("router_jitter_noise") > 0,
        },
    )


FAMILY = Family(
    config_class="MixtralConfig",
    defaults=_DEFAULTS,
    build=_build,
    aliases={"num_experts": "num_local_experts"},
)
