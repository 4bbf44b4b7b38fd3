"""GPT-NeoX and Pythia: fused qkv, biases, part of each head rotated, attention and MLP in parallel."""

from __future__ import annotations

from typing import Any

from trainmem.job import Task
from trainmem.model.architecture import Architecture, Parameter
from trainmem.model.config import ConfigReader
from trainmem.model.families._family import Family
from trainmem.model.families._parts import layer_norm, linear, output_head, rotary_buffers
from trainmem.model.families._rope import rope_type

__all__ = ["FAMILY"]

_DEFAULTS: dict[str, Any] = {
    "vocab_size": 50432,
    "hidden_size": 6144,
    "num_hidden_layers": 44,
    "num_attention_heads": 64,
    "intermediate_size": 24576,
    "hidden_act": "gelu",
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "use_parallel_residual": True,
    "rope_parameters": None,
    "rotary_pct": 0.25,
    "attention_bias": True,
}


def _build(config: ConfigReader, task: Task) -> Architecture:
    hidden_size = config.size("hidden_size")
    layers = config.layers()
    heads = config.divisor("num_attention_heads", hidden_size, "hidden_size")
    intermediate_size = config.size("intermediate_size")
    vocab_size = config.vocab_size()
    attention_bias = config.flag("attention_bias")
    rotary_dim = config.rotary_dim(hidden_size // heads, "rotary_pct")
    hidden_dropout = config.fraction("hidden_dropout")
    return Architecture(
        family="gpt_neox",
        hidden_size=hidden_size,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden_size // heads,
        intermediate_size=intermediate_size,
        vocab_size=vocab_size,
        max_positions=config.positions(),
        tied=task == "causal_lm" and config.flag("tie_word_embeddings"),
        layer_kinds=("full_attention",) * layers,
        embeddings=(Parameter("embed_in.weight", (vocab_size, hidden_size), "embedding"),),
        blocks={
            "full_attention": (
                *layer_norm("input_layernorm", hidden_size),
                *layer_norm("post_attention_layernorm", hidden_size),
                *linear("attention.query_key_value", hidden_size, 3 * hidden_size, bias=attention_bias),
                *linear("attention.dense", hidden_size, hidden_size, bias=attention_bias),
                *linear("mlp.dense_h_to_4h", hidden_size, intermediate_size, bias=True),
                *linear("mlp.dense_4h_to_h", intermediate_size, hidden_size, bias=True),
            )
        },
        final=layer_norm("final_layer_norm", hidden_size),
        head=output_head(task, hidden_size, vocab_size),
        buffers=rotary_buffers(rotary_dim, rope_type(config)),
        dropout={
            "embedding": hidden_dropout,
            "attention": config.fraction("attention_dropout"),
            "residual": hidden_dropout,
        },
        extra={
            "activation": config.activation("hidden_act"),
            "norm": "layer_norm",
            "qkv_bias": attention_bias,
            "output_bias": attention_bias,
            "mlp_bias": True,
            "rotary_dim": rotary_dim,
            "parallel_residual": config.flag("use_parallel_residual"),
        },
    )


FAMILY = Family(config_class="GPTNeoXConfig", defaults=_DEFAULTS, build=_build)
