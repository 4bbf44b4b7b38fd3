"""gpt-oss: experts with biases, a learned sink per head, every second block sliding."""

from __future__ import annotations

from typing import Any

from trainmem.job import Task
from trainmem.model.architecture import Architecture, Parameter
from trainmem.model.config import ConfigReader
from trainmem.model.families._decoder import build_decoder, interleaved, read_sizes
from trainmem.model.families._family import Family
from trainmem.model.families._parts import attention_projections, rms_norm, rotary_buffers
from trainmem.model.families._rope import rope_type

__all__ = ["FAMILY"]

_DEFAULTS: dict[str, Any] = {
    "num_hidden_layers": 36,
    "num_local_experts": 128,
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "head_dim": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "sliding_window": 128,
    "tie_word_embeddings": False,
    "max_position_embeddings": 131072,
    "attention_dropout": 0.0,
    "num_experts_per_tok": 4,
    "layer_types": None,
    "attention_bias": True,
}


def _experts(experts: int, hidden_size: int, intermediate_size: int) -> tuple[Parameter, ...]:
    return (
        Parameter("mlp.router.weight", (experts, hidden_size), "other"),
        Parameter("mlp.router.bias", (experts,), "other"),
        Parameter("mlp.experts.gate_up_proj", (experts, hidden_size, 2 * intermediate_size), "expert"),
        Parameter("mlp.experts.gate_up_proj_bias", (experts, 2 * intermediate_size), "bias"),
        Parameter("mlp.experts.down_proj", (experts, intermediate_size, hidden_size), "expert"),
        Parameter("mlp.experts.down_proj_bias", (experts, hidden_size), "bias"),
    )


def _build(config: ConfigReader, task: Task) -> Architecture:
    sizes = read_sizes(config, explicit_head_dim=True)
    layer_kinds, window = interleaved(config, sizes.layers, lambda index: index % 2 == 0)
    experts = config.experts("num_local_experts")
    attention_bias = config.flag("attention_bias")
    block = (
        Parameter("self_attn.sinks", (sizes.heads,), "other"),
        *attention_projections(
            hidden_size=sizes.hidden_size,
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            head_dim=sizes.head_dim,
            qkv_bias=attention_bias,
            output_bias=attention_bias,
        ),
        *_experts(experts, sizes.hidden_size, sizes.intermediate_size),
        *rms_norm("input_layernorm", sizes.hidden_size),
        *rms_norm("post_attention_layernorm", sizes.hidden_size),
    )
    architecture = build_decoder(
        "gpt_oss",
        config,
        task,
        sizes,
        layer_kinds=layer_kinds,
        blocks=dict.fromkeys(layer_kinds, block),
        buffers=rotary_buffers(sizes.head_dim, rope_type(config, default="yarn")),
        extra={
            # Fixed in the experts' code (a clamped swish); hidden_act is not read.
            "activation": "silu",
            "qkv_bias": attention_bias,
            "output_bias": attention_bias,
            "sliding_window": window,
            "attention_sinks": True,
            "experts": experts,
            "experts_per_token": config.experts_per_token(experts),
            "moe_intermediate_size": sizes.intermediate_size,
        },
    )
    return architecture


FAMILY = Family(
    config_class="GptOssConfig",
    defaults=_DEFAULTS,
    build=_build,
    aliases={"num_experts": "num_local_experts"},
)
