"""Phi-3 and Phi-4: Llama with q, k and v in one matrix, gate and up in another."""

from __future__ import annotations

from typing import Any

from trainmem.job import Task
from trainmem.model.architecture import Architecture
from trainmem.model.config import ConfigReader
from trainmem.model.families._decoder import build_decoder, read_sizes, uniform
from trainmem.model.families._family import Family
from trainmem.model.families._parts import linear, rms_norm, rotary_buffers
from trainmem.model.families._rope import rope_type

__all__ = ["FAMILY"]

_DEFAULTS: dict[str, Any] = {
    "vocab_size": 32064,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "resid_pdrop": 0.0,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "partial_rotary_factor": 1.0,
    "sliding_window": None,
}


def _build(config: ConfigReader, task: Task) -> Architecture:
    sizes = read_sizes(config, explicit_head_dim=True)
    rotary_dim = config.rotary_dim(sizes.head_dim, "partial_rotary_factor")
    layer_kinds, window = uniform(config, sizes.layers)
    q_width, kv_width = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    block = (
        *linear("self_attn.o_proj", q_width, sizes.hidden_size),
        *linear("self_attn.qkv_proj", sizes.hidden_size, q_width + 2 * kv_width),
        *linear("mlp.gate_up_proj", sizes.hidden_size, 2 * sizes.intermediate_size),
        *linear("mlp.down_proj", sizes.intermediate_size, sizes.hidden_size),
        *rms_norm("input_layernorm", sizes.hidden_size),
        *rms_norm("post_attention_layernorm", sizes.hidden_size),
    )
    return build_decoder(
        "phi3",
        config,
        task,
        sizes,
        layer_kinds=layer_kinds,
        blocks=dict.fromkeys(layer_kinds, block),
        buffers=rotary_buffers(rotary_dim, rope_type(config, renamed={"su": "longrope", "yarn": "longrope"})),
        dropout={
            "attention": config.fraction("attention_dropout"),
            "residual": config.fraction("resid_pdrop"),
        },
        extra={
            "activation": config.activation("hidden_act"),
            "sliding_window": window,
            "rotary_dim": rotary_dim,
        },
    )


FAMILY = Family(config_class="Phi3Config", defaults=_DEFAULTS, build=_build)
