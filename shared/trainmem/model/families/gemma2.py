"""Gemma 2: norms before and after attention and MLP, tanh soft caps, every second block sliding."""

from __future__ import annotations

from typing import Any

from trainmem.job import Task
from trainmem.model.architecture import Architecture
from trainmem.model.config import ConfigReader
from trainmem.model.families._decoder import build_decoder, interleaved, read_sizes
from trainmem.model.families._family import Family
from trainmem.model.families._parts import (
    EMBEDDING_SCALE,
    attention_projections,
    gated_mlp,
    rms_norm,
    rotary_buffers,
)
from trainmem.model.families._rope import rope_type

__all__ = ["FAMILY"]

_DEFAULTS: dict[str, Any] = {
    "vocab_size": 256000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "sliding_window": 4096,
    "layer_types": None,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
    "use_bidirectional_attention": None,
}


def _build(config: ConfigReader, task: Task) -> Architecture:
    sizes = read_sizes(config, explicit_head_dim=True)
    config.divisor("num_attention_heads", sizes.hidden_size, "hidden_size")
    layer_kinds, window = interleaved(config, sizes.layers, lambda index: index % 2 == 0)
    attention_bias = config.flag("attention_bias")
    block = (
        *attention_projections(
            hidden_size=sizes.hidden_size,
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            head_dim=sizes.head_dim,
            qkv_bias=attention_bias,
            output_bias=attention_bias,
        ),
        *gated_mlp(sizes.hidden_size, sizes.intermediate_size),
        *rms_norm("input_layernorm", sizes.hidden_size),
        *rms_norm("post_attention_layernorm", sizes.hidden_size),
        *rms_norm("pre_feedforward_layernorm", sizes.hidden_size),
        *rms_norm("post_feedforward_layernorm", sizes.hidden_size),
    )
    return build_decoder(
        "gemma2",
        config,
        task,
        sizes,
        layer_kinds=layer_kinds,
        blocks=dict.fromkeys(layer_kinds, block),
        buffers=(EMBEDDING_SCALE, *rotary_buffers(sizes.head_dim, rope_type(config))),
        extra={
            "activation": config.activation("hidden_activation"),
            "qkv_bias": attention_bias,
            "output_bias": attention_bias,
            "sliding_window": window,
            "post_norm": "both",
            "embedding_scale": True,
            "attention_soft_cap": config.soft_cap("attn_logit_softcapping"),
            "logits_soft_cap": config.soft_cap("final_logit_softcapping"),
            "encoder": config.optional_flag("use_bidirectional_attention"),
        },
    )


FAMILY = Family(config_class="Gemma2Config", defaults=_DEFAULTS, build=_build)
