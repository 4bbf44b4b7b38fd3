"""Llama 2 and 3, and the many models published in their shape (TinyLlama, SmolLM2)."""

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
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "mlp_bias": False,
}


def _build(config: ConfigReader, task: Task) -> Architecture:
    """Read a LlamaConfig; its own check wants heads that divide the hidden size, head_dim or not."""
    sizes = read_sizes(config, explicit_head_dim=True)
    config.divisor("num_attention_heads", sizes.hidden_size, "hidden_size")
    attention_bias, mlp_bias = config.flag("attention_bias"), config.flag("mlp_bias")
    block = (
        *attention_projections(
            hidden_size=sizes.hidden_size,
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            head_dim=sizes.head_dim,
            qkv_bias=attention_bias,
            output_bias=attention_bias,
        ),
        *gated_mlp(sizes.hidden_size, sizes.intermediate_size, bias=mlp_bias),
        *rms_norm("input_layernorm", sizes.hidden_size),
        *rms_norm("post_attention_layernorm", sizes.hidden_size),
    )
    return build_decoder(
        "llama",
        config,
        task,
        sizes,
        layer_kinds=("full_attention",) * sizes.layers,
        blocks={"full_attention": block},
        extra={
            "activation": config.activation("hidden_act"),
            "qkv_bias": attention_bias,
            "output_bias": attention_bias,
            "mlp_bias": mlp_bias,
        },
    )


FAMILY = Family(config_class="LlamaConfig", defaults=_DEFAULTS, build=_build)
