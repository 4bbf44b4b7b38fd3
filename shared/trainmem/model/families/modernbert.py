"""ModernBERT: rotary positions, fused qkv and gate, two sliding blocks to one full, no norm in the first."""

from __future__ import annotations

from typing import Any

from trainmem.job import Task
from trainmem.model.architecture import Architecture, Parameter
from trainmem.model.config import ConfigReader
from trainmem.model.families._family import Family
from trainmem.model.families._parts import SEQUENCE_LABELS, layer_norm, linear, rotary_buffers
from trainmem.model.families._rope import rope_types

__all__ = ["FAMILY"]

_DEFAULTS: dict[str, Any] = {
    "vocab_size": 50368,
    "hidden_size": 768,
    "intermediate_size": 1152,
    "num_hidden_layers": 22,
    "num_attention_heads": 12,
    "hidden_activation": "gelu",
    "max_position_embeddings": 8192,
    "norm_bias": False,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "layer_types": None,
    "global_attn_every_n_layers": 3,
    "local_attention": 128,
    "embedding_dropout": 0.0,
    "mlp_bias": False,
    "mlp_dropout": 0.0,
    "classifier_dropout": 0.0,
    "classifier_pooling": "cls",
    "classifier_activation": "gelu",
    "classifier_bias": False,
}


def _build(config: ConfigReader, task: Task) -> Architecture:
    hidden_size = config.size("hidden_size")
    layers = config.layers()
    heads = config.divisor("num_attention_heads", hidden_size, "hidden_size")
    head_dim = hidden_size // heads
    intermediate_size = config.size("intermediate_size")
    vocab_size = config.vocab_size()
    norm_bias, mlp_bias = config.flag("norm_bias"), config.flag("mlp_bias")
    attention_bias = config.flag("attention_bias")
    pooling = config.raw("classifier_pooling")
    if pooling not in ("cls", "mean"):
        raise config.refuse("classifier_pooling", "is not one of cls, mean")
    every = config.count("global_attn_every_n_layers", least=1)
    types = config.attention_types(layers) or tuple(
        "sliding_attention" if index % every else "full_attention" for index in range(layers)
    )
    kinds = tuple(sorted(set(types)))
    first = f"{types[0]}_first"
    after_norm = (
        *linear("attn.Wqkv", hidden_size, 3 * hidden_size, bias=attention_bias),
        *linear("attn.Wo", hidden_size, hidden_size, bias=attention_bias),
        *layer_norm("mlp_norm", hidden_size, bias=norm_bias),
        *linear("mlp.Wi", hidden_size, 2 * intermediate_size, bias=mlp_bias),
        *linear("mlp.Wo", intermediate_size, hidden_size, bias=mlp_bias),
    )
    block = (*layer_norm("attn_norm", hidden_size, bias=norm_bias), *after_norm)
    return Architecture(
        family="modernbert",
        hidden_size=hidden_size,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        intermediate_size=intermediate_size,
        vocab_size=vocab_size,
        max_positions=config.positions(),
        tied=False,
        layer_kinds=(first, *types[1:]),
        embeddings=(
            Parameter("embeddings.tok_embeddings.weight", (vocab_size, hidden_size), "embedding"),
            *layer_norm("embeddings.norm", hidden_size, bias=norm_bias),
        ),
        blocks={first: after_norm, **dict.fromkeys(types[1:], block)},
        final=layer_norm("final_norm", hidden_size, bias=norm_bias),
        head=(
            *linear("head.dense", hidden_size, hidden_size, bias=config.flag("classifier_bias")),
            *layer_norm("head.norm", hidden_size, bias=norm_bias),
            Parameter("classifier.weight", (SEQUENCE_LABELS, hidden_size), "head"),
            Parameter("classifier.bias", (SEQUENCE_LABELS,), "bias"),
        ),
        buffers=rotary_buffers(head_dim, rope_types(config, kinds, scaled=kinds)),
        dropout={
            "embedding": config.fraction("embedding_dropout"),
            "attention": config.fraction("attention_dropout"),
            "mlp": config.fraction("mlp_dropout"),
            "classifier": config.fraction("classifier_dropout"),
        },
        extra={
            "activation": config.activation("hidden_activation"),
            "norm": "layer_norm",
            "gated": True,
            "rotary_dim": head_dim,
            "qkv_bias": attention_bias,
            "output_bias": attention_bias,
            "mlp_bias": mlp_bias,
            "sliding_window": config.count("local_attention", least=2),
            "pooling": pooling,
            "classifier_activation": config.activation("classifier_activation"),
            "encoder": True,
        },
    )


FAMILY = Family(
    config_class="ModernBertConfig", defaults=_DEFAULTS, build=_build, tasks=("sequence_classification",)
)
