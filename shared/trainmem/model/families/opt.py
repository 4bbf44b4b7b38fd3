"""OPT: learned positions with an offset of two, biases; the 350M has a narrow embedding and late norms."""

from __future__ import annotations

from typing import Any

from trainmem.job import Task
from trainmem.model.architecture import Architecture, Parameter
from trainmem.model.config import ConfigReader
from trainmem.model.families._family import Family
from trainmem.model.families._parts import layer_norm, linear, output_head

__all__ = ["FAMILY"]

_DEFAULTS: dict[str, Any] = {
    "vocab_size": 50272,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "ffn_dim": 3072,
    "max_position_embeddings": 2048,
    "do_layer_norm_before": True,
    "_remove_final_layer_norm": False,
    "word_embed_proj_dim": None,
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "num_attention_heads": 12,
    "activation_function": "relu",
    "enable_bias": True,
    "layer_norm_elementwise_affine": True,
    "tie_word_embeddings": True,
}

_POSITION_OFFSET = 2


def _build(config: ConfigReader, task: Task) -> Architecture:
    hidden_size = config.size("hidden_size")
    layers = config.layers()
    heads = config.divisor("num_attention_heads", hidden_size, "hidden_size")
    intermediate_size = config.size("ffn_dim")
    vocab_size = config.vocab_size()
    positions = config.positions()
    embedding_width = config.optional_size("word_embed_proj_dim") or hidden_size
    bias = config.flag("enable_bias")
    norm_before = config.flag("do_layer_norm_before")
    affine = config.flag("layer_norm_elementwise_affine")

    def norm(name: str) -> tuple[Parameter, ...]:
        return layer_norm(name, hidden_size) if affine else ()

    projections: tuple[Parameter, ...] = ()
    if embedding_width != hidden_size:
        projections = (
            *linear("project_out", hidden_size, embedding_width),
            *linear("project_in", embedding_width, hidden_size),
        )
    final_norm = norm_before and not config.flag("_remove_final_layer_norm")
    return Architecture(
        family="opt",
        hidden_size=hidden_size,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden_size // heads,
        intermediate_size=intermediate_size,
        vocab_size=vocab_size,
        max_positions=positions,
        tied=task == "causal_lm" and config.flag("tie_word_embeddings"),
        layer_kinds=("full_attention",) * layers,
        embeddings=(
            Parameter("embed_tokens.weight", (vocab_size, embedding_width), "embedding"),
            Parameter("embed_positions.weight", (positions + _POSITION_OFFSET, hidden_size), "embedding"),
            *projections,
            *(norm("final_layer_norm") if final_norm else ()),
        ),
        blocks={
            "full_attention": (
                *linear("self_attn.k_proj", hidden_size, hidden_size, bias=bias),
                *linear("self_attn.v_proj", hidden_size, hidden_size, bias=bias),
                *linear("self_attn.q_proj", hidden_size, hidden_size, bias=bias),
                *linear("self_attn.out_proj", hidden_size, hidden_size, bias=bias),
                *norm("self_attn_layer_norm"),
                *linear("fc1", hidden_size, intermediate_size, bias=bias),
                *linear("fc2", intermediate_size, hidden_size, bias=bias),
                *norm("final_layer_norm"),
            )
        },
        final=(),
        head=output_head(task, embedding_width, vocab_size),
        dropout={
            "attention": config.fraction("attention_dropout"),
            "residual": config.fraction("dropout"),
        },
        extra={
            "activation": config.activation("activation_function"),
            "norm": "layer_norm",
            "position_table": True,
            "qkv_bias": bias,
            "output_bias": bias,
            "mlp_bias": bias,
            "post_norm": None if norm_before else "only",
            "embedding_width": embedding_width,
            "final_norm": final_norm,
        },
    )


FAMILY = Family(config_class="OPTConfig", defaults=_DEFAULTS, build=_build)
