"""BERT: learned positions and token types, norms after attention and MLP, a pooler for classification."""

from __future__ import annotations

from typing import Any

from trainmem.job import Task
from trainmem.model.architecture import Architecture, Buffer, Parameter
from trainmem.model.config import ConfigReader
from trainmem.model.families._family import Family
from trainmem.model.families._parts import SEQUENCE_LABELS, layer_norm, linear

__all__ = ["FAMILY"]

_DEFAULTS: dict[str, Any] = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "classifier_dropout": None,
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}


def _classifier(hidden_size: int) -> tuple[Parameter, ...]:
    return (
        Parameter("classifier.weight", (SEQUENCE_LABELS, hidden_size), "head"),
        Parameter("classifier.bias", (SEQUENCE_LABELS,), "bias"),
    )


def _language_head(hidden_size: int, vocab_size: int, *, tied: bool) -> tuple[Parameter, ...]:
    """BertLMHeadModel's: a bias, a transform and the decoder, whose bias is the first one unless untied."""
    return (
        Parameter("cls.predictions.bias", (vocab_size,), "bias"),
        *linear("cls.predictions.transform.dense", hidden_size, hidden_size, bias=True),
        *layer_norm("cls.predictions.transform.LayerNorm", hidden_size),
        Parameter("cls.predictions.decoder.weight", (vocab_size, hidden_size), "head"),
        *(() if tied else (Parameter("cls.predictions.decoder.bias", (vocab_size,), "bias"),)),
    )


def _build(config: ConfigReader, task: Task) -> Architecture:
    hidden_size = config.size("hidden_size")
    layers = config.layers()
    heads = config.divisor("num_attention_heads", hidden_size, "hidden_size")
    intermediate_size = config.size("intermediate_size")
    vocab_size = config.vocab_size()
    positions = config.positions()
    if config.flag("add_cross_attention"):
        raise config.refuse(
            "add_cross_attention", "is not supported; only BERT without an encoder beside it is"
        )
    decoder = config.flag("is_decoder")
    tied = task == "causal_lm" and config.flag("tie_word_embeddings")
    hidden_dropout = config.fraction("hidden_dropout_prob")
    classifies = task == "sequence_classification"
    return Architecture(
        family="bert",
        hidden_size=hidden_size,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden_size // heads,
        intermediate_size=intermediate_size,
        vocab_size=vocab_size,
        max_positions=positions,
        tied=tied,
        layer_kinds=("full_attention",) * layers,
        embeddings=(
            Parameter("embeddings.word_embeddings.weight", (vocab_size, hidden_size), "embedding"),
            Parameter("embeddings.position_embeddings.weight", (positions, hidden_size), "embedding"),
            Parameter(
                "embeddings.token_type_embeddings.weight",
                (config.count("type_vocab_size", least=1), hidden_size),
                "embedding",
            ),
            *layer_norm("embeddings.LayerNorm", hidden_size),
        ),
        blocks={
            "full_attention": (
                *linear("attention.self.query", hidden_size, hidden_size, bias=True),
                *linear("attention.self.key", hidden_size, hidden_size, bias=True),
                *linear("attention.self.value", hidden_size, hidden_size, bias=True),
                *linear("attention.output.dense", hidden_size, hidden_size, bias=True),
                *layer_norm("attention.output.LayerNorm", hidden_size),
                *linear("intermediate.dense", hidden_size, intermediate_size, bias=True),
                *linear("output.dense", intermediate_size, hidden_size, bias=True),
                *layer_norm("output.LayerNorm", hidden_size),
            )
        },
        final=linear("pooler.dense", hidden_size, hidden_size, bias=True) if classifies else (),
        head=_classifier(hidden_size) if classifies else _language_head(hidden_size, vocab_size, tied=tied),
        buffers=tuple(
            Buffer(f"embeddings.{name}", (1, positions), 8, floating=False, persistent=False)
            for name in ("position_ids", "token_type_ids")
        ),
        notes=() if classifies or decoder else ("BERT without is_decoder attends to later tokens too",),
        dropout={
            "embedding": hidden_dropout,
            "attention": config.fraction("attention_probs_dropout_prob"),
            "residual": hidden_dropout,
            "classifier": hidden_dropout
            if config.raw("classifier_dropout") is None
            else config.fraction("classifier_dropout"),
        },
        extra={
            "activation": config.activation("hidden_act"),
            "norm": "layer_norm",
            "position_table": True,
            "qkv_bias": True,
            "output_bias": True,
            "mlp_bias": True,
            "post_norm": "only",
            "encoder": not decoder,
            # an untied decoder adds a bias of its own, and this one is used no more
            "without_gradient": None if classifies or tied else "cls.predictions.bias",
        },
    )


FAMILY = Family(config_class="BertConfig", defaults=_DEFAULTS, build=_build)
