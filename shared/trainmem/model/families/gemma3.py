"""Gemma 3 (text): Gemma 2 with norms on q and k, no soft caps, and five sliding blocks to one full."""

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
from trainmem.model.families._rope import rope_types

__all__ = ["FAMILY"]

_DEFAULTS: dict[str, Any] = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "sliding_window": 4096,
    "layer_types": None,
    "final_logit_softcapping": None,
    "attn_logit_softcapping": None,
    "use_bidirectional_attention": False,
    "sliding_window_pattern": 6,
}


def _build(config: ConfigReader, task: Task) -> Architecture:
    sizes = read_sizes(config, explicit_head_dim=True)
    config.divisor("num_attention_heads", sizes.hidden_size, "hidden_size")
    pattern = config.count("sliding_window_pattern", least=1)
    layer_kinds, window = interleaved(config, sizes.layers, lambda index: (index + 1) % pattern != 0)
    if window is not None and config.optional_flag("use_bidirectional_attention"):
        window = window // 2 + 1
    rope = rope_types(config, sorted(set(layer_kinds)), scaled=("full_attention",))
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
        *rms_norm("pre_feedforward_layernorm", sizes.hidden_size),
        *rms_norm("post_feedforward_layernorm", sizes.hidden_size),
    )
    return build_decoder(
        "gemma3_text",
        config,
        task,
        sizes,
        layer_kinds=layer_kinds,
        blocks=dict.fromkeys(layer_kinds, block),
        buffers=(EMBEDDING_SCALE, *rotary_buffers(sizes.head_dim, rope)),
        extra={
            "activation": config.activation("hidden_activation"),
            "qkv_bias": attention_bias,
            "output_bias": attention_bias,
            "qk_norm": "head",
            "sliding_window": window,
            "post_norm": "both",
            "embedding_scale": True,
            "attention_soft_cap": config.soft_cap("attn_logit_softcapping"),
            "logits_soft_cap": config.soft_cap("final_logit_softcapping"),
            "encoder": config.optional_flag("use_bidirectional_attention"),
        },
    )


FAMILY = Family(config_class="Gemma3TextConfig", defaults=_DEFAULTS, build=_build)
