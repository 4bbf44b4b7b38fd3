"""GPT-2: learned positions, fused qkv, biases everywhere, Conv1D weights stored (inputs, outputs)."""

from __future__ import annotations

from typing import Any

from trainmem.job import Task
from trainmem.model.architecture import Architecture, Parameter
from trainmem.model.config import ConfigReader
from trainmem.model.families._family import Family
from trainmem.model.families._parts import layer_norm, output_head

__all__ = ["FAMILY"]

_DEFAULTS: dict[str, Any] = {
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_inner": None,
    "activation_function": "gelu_new",
    "resid_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "attn_pdrop": 0.1,
    "add_cross_attention": False,
    "reorder_and_upcast_attn": False,
    "tie_word_embeddings": True,
}

_ALIASES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}


def _conv1d(name: str, inputs: int, outputs: int) -> tuple[Parameter, ...]:
    return (
        Parameter(f"{name}.weight", (inputs, outputs), "linear"),
        Parameter(f"{name}.bias", (outputs,), "bias"),
    )


def _build(config: ConfigReader, task: Task) -> Architecture:
    """Read a GPT2Config."""
    hidden_size = config.size("n_embd")
    layers = config.layers("n_layer")
    heads = config.divisor("n_head", hidden_size, "n_embd")
    intermediate_size = config.optional_size("n_inner") or 4 * hidden_size
    vocab_size = config.vocab_size()
    positions = config.positions("n_positions")
    if config.flag("add_cross_attention"):
        raise config.refuse("add_cross_attention", "is not supported; only decoder-only GPT-2 is")
    return Architecture(
        family="gpt2",
        hidden_size=hidden_size,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden_size // heads,
        intermediate_size=intermediate_size,
        vocab_size=vocab_size,
        max_positions=positions,
        tied=task == "causal_lm" and config.flag("tie_word_embeddings"),
        layer_kinds=("block",) * layers,
        embeddings=(
            Parameter("wte.weight", (vocab_size, hidden_size), "embedding"),
            Parameter("wpe.weight", (positions, hidden_size), "embedding"),
        ),
        blocks={
            "block": (
                *layer_norm("ln_1", hidden_size),
                *_conv1d("attn.c_attn", hidden_size, 3 * hidden_size),
                *_conv1d("attn.c_proj", hidden_size, hidden_size),
                *layer_norm("ln_2", hidden_size),
                *_conv1d("mlp.c_fc", hidden_size, intermediate_size),
                *_conv1d("mlp.c_proj", intermediate_size, hidden_size),
            )
        },
        final=layer_norm("ln_f", hidden_size),
        head=output_head(task, hidden_size, vocab_size),
        dropout={
            "embedding": config.fraction("embd_pdrop"),
            "attention": config.fraction("attn_pdrop"),
            "residual": config.fraction("resid_pdrop"),
        },
        extra={
            "activation": config.activation("activation_function"),
            "norm": "layer_norm",
            "position_table": True,
            "qkv_bias": True,
            "output_bias": True,
            "mlp_bias": True,
            "upcast_attention": config.flag("reorder_and_upcast_attn"),
        },
    )


FAMILY = Family(config_class="GPT2Config", defaults=_DEFAULTS, build=_build, aliases=_ALIASES)
