"""Qwen3 mixture of experts: Qwen3 with stacked experts, in all blocks or in some."""

from __future__ import annotations

from typing import Any

from trainmem.job import Task
from trainmem.model.architecture import Architecture, Parameter
from trainmem.model.config import ConfigReader
from trainmem.model.families._decoder import DecoderSizes, build_decoder, read_sizes, uniform
from trainmem.model.families._family import Family
from trainmem.model.families._parts import attention_projections, gated_experts, gated_mlp, rms_norm

__all__ = ["FAMILY"]

_DEFAULTS: dict[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "attention_dropout": 0.0,
    "decoder_sparse_step": 1,
    "moe_intermediate_size": 768,
    "num_experts_per_tok": 8,
    "num_experts": 128,
    "mlp_only_layers": None,
    "norm_topk_prob": False,
}


def _dense_layers(config: ConfigReader, layers: int) -> frozenset[int]:
    """The blocks with an ordinary MLP: those listed, and those that decoder_sparse_step leaves out."""
    listed = config.raw("mlp_only_layers") or []
    if not isinstance(listed, list | tuple) or not all(type(index) is int for index in listed):
        raise config.refuse("mlp_only_layers", "is not a list of layer numbers")
    step = config.count("decoder_sparse_step", least=1)
    return frozenset(index for index in range(layers) if index in listed or (index + 1) % step)


def _block(config: ConfigReader, sizes: DecoderSizes, mlp: tuple[Parameter, ...]) -> tuple[Parameter, ...]:
    attention_bias = config.flag("attention_bias")
    return (
        *attention_projections(
            hidden_size=sizes.hidden_size,
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            head_dim=sizes.head_dim,
            qkv_bias=attention_bias,
            output_bias=attention_bias,
            qk_norm="head",
        ),
        *mlp,
        *rms_norm("input_layernorm", sizes.hidden_size),
        *rms_norm("post_attention_layernorm", sizes.hidden_size),
    )


def _build(config: ConfigReader, task: Task) -> Architecture:
    sizes = read_sizes(config, explicit_head_dim=True)
    experts = config.experts("num_experts")
    moe_intermediate_size = config.size("moe_intermediate_size")
    dense = _dense_layers(config, sizes.layers)
    window = uniform(config, sizes.layers)[1] if config.flag("use_sliding_window") else None
    attention = "full_attention" if window is None else "sliding_attention"
    sparse_mlp = (
        *gated_experts(experts, sizes.hidden_size, moe_intermediate_size),
        Parameter("mlp.gate.weight", (experts, sizes.hidden_size), "other"),
    )
    dense_mlp = gated_mlp(sizes.hidden_size, sizes.intermediate_size)
    return build_decoder(
        "qwen3_moe",
        config,
        task,
        sizes,
        layer_kinds=tuple(
            f"{attention}_dense" if index in dense else attention for index in range(sizes.layers)
        ),
        blocks={
            attention: _block(config, sizes, sparse_mlp),
            f"{attention}_dense": _block(config, sizes, dense_mlp),
        },
        extra={
            "activation": config.activation("hidden_act"),
            "qkv_bias": config.flag("attention_bias"),
            "output_bias": config.flag("attention_bias"),
            "qk_norm": "head",
            "sliding_window": window,
            "experts": experts,
            "experts_per_token": config.experts_per_token(experts),
            "moe_intermediate_size": moe_intermediate_size,
            "normalized_routing": config.flag("norm_topk_prob"),
        },
    )


FAMILY = Family(
    config_class="Qwen3MoeConfig",
    defaults=_DEFAULTS,
    build=_build,
    # transformers stores num_experts under this name.
    aliases={"num_local_experts": "num_experts"},
)
