"""Small random configs of every family that the tape knows, with the keys that change its order of events."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

__all__ = ["FAMILIES", "POSITIONS"]

Config = dict[str, Any]

POSITIONS = 4096
"""Rows of a position table: the longest sequence that a drawn job may have."""

_FUSED_ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh", "relu")
_ACTIVATIONS = (
    *_FUSED_ACTIVATIONS,
    "gelu_new",
    "gelu_fast",
    "quick_gelu",
    "gelu_python",
    "gelu_10",
    "laplace",
    "leaky_relu",
    "mish",
    "relu2",
    "relu6",
    "hardswish",
    "sigmoid",
    "tanh",
    "linear",
)
_ROPES: tuple[Config, ...] = (
    {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 2048,
        "rope_theta": 500000.0,
    },
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "rope_theta": 10000.0},
)


def _drop(rng: random.Random, share: float = 0.2) -> float:
    return 0.1 if rng.random() < share else 0.0


def _activation(rng: random.Random, usual: str) -> str:
    """The family's own in most configs, else any of transformers' names."""
    return usual if rng.random() < 0.8 else rng.choice(_ACTIVATIONS)


def _heads(rng: random.Random) -> Config:
    heads, group = rng.choice([(4, 1), (4, 2), (4, 4), (6, 3), (8, 2), (2, 1), (1, 1)])
    return {
        "num_attention_heads": heads,
        "num_key_value_heads": heads // (group if rng.random() < 0.7 else 1),
    }


def _head_dim(rng: random.Random) -> int:
    """Mostly what models have; kernels fill up those that 8 does not divide."""
    return rng.choice([16, 32, 32, 64, 64, 12, 20, 24, 40, 80, 96, 128, 256])


def _plain(rng: random.Random) -> Config:
    """The keys of every family but GPT-2, without grouped heads."""
    heads = _heads(rng)["num_attention_heads"]
    return {
        "vocab_size": rng.choice([512, 1000, 2048, 5003]),
        "hidden_size": heads * _head_dim(rng),
        "intermediate_size": rng.choice([128, 344, 512, 1024]),
        "num_hidden_layers": rng.choice([1, 1, 2, 2, 2, 3, 3, 6]),
        "num_attention_heads": heads,
        "max_position_embeddings": POSITIONS,
        "tie_word_embeddings": rng.random() < 0.4,
    }


def _decoder(rng: random.Random) -> Config:
    heads = _heads(rng)
    config = {
        **_plain(rng),
        "hidden_size": heads["num_attention_heads"] * _head_dim(rng),
        **heads,
        "attention_dropout": _drop(rng, 0.1),
        "hidden_act": _activation(rng, "silu"),
    }
    if rng.random() < 0.15:
        config["rope_parameters"] = rng.choice(_ROPES)
    return config


def _with_head_dim(rng: random.Random) -> Config:
    return {**_decoder(rng), "head_dim": _head_dim(rng)}


def _biased(rng: random.Random) -> Config:
    return {**_decoder(rng), "attention_bias": rng.random() < 0.2}


def _llama(rng: random.Random) -> Config:
    return {**_biased(rng), "mlp_bias": rng.random() < 0.2}


def _qwen2(rng: random.Random) -> Config:
    config = _decoder(rng)
    if rng.random() < 0.3:
        window = {"sliding_window": rng.choice([32, 4096]), "max_window_layers": rng.choice([0, 1])}
        config.update(use_sliding_window=True, **window)
    return config


def _qwen3(rng: random.Random) -> Config:
    return {**_qwen2(rng), "head_dim": _head_dim(rng), "attention_bias": rng.random() < 0.2}


def _gpt2(rng: random.Random) -> Config:
    head, drop = rng.choice([1, 2, 4, 6]), _drop(rng, 0.3)
    return {
        "vocab_size": rng.choice([512, 1000, 5003]),
        "n_positions": POSITIONS,
        "n_embd": head * _head_dim(rng),
        "n_layer": rng.choice([1, 2, 2, 3, 6]),
        "n_head": head,
        "n_inner": rng.choice([None, None, 160]),
        "activation_function": _activation(rng, "gelu_new"),
        "resid_pdrop": drop,
        "embd_pdrop": drop,
        "attn_pdrop": drop,
        "tie_word_embeddings": rng.random() < 0.8,
    }


def _gpt_neox(rng: random.Random) -> Config:
    return {
        **_plain(rng),
        "hidden_act": _activation(rng, "gelu"),
        "rotary_pct": rng.choice([0.25, 0.5, 1.0]),
        "use_parallel_residual": rng.random() < 0.7,
        "attention_bias": rng.random() < 0.8,
        "attention_dropout": _drop(rng),
        "hidden_dropout": _drop(rng),
    }


def _opt(rng: random.Random) -> Config:
    config = _plain(rng)
    config["ffn_dim"] = config.pop("intermediate_size")
    hidden = config["hidden_size"]
    return {
        **config,
        "word_embed_proj_dim": rng.choice([hidden, hidden, hidden, 48]),
        "activation_function": _activation(rng, "relu"),
        "dropout": _drop(rng),
        "attention_dropout": _drop(rng, 0.1),
        "do_layer_norm_before": rng.random() < 0.8,
        "enable_bias": rng.random() < 0.9,
    }


def _gemma(rng: random.Random) -> Config:
    config = _with_head_dim(rng)
    config["hidden_activation"] = config.pop("hidden_act").replace("silu", "gelu_pytorch_tanh")
    config.pop("rope_parameters", None)
    return {**config, "sliding_window": rng.choice([16, 64, 4096]), "attention_bias": rng.random() < 0.1}


def _phi3(rng: random.Random) -> Config:
    config = _decoder(rng)
    config.pop("rope_parameters", None)
    return {
        **config,
        "sliding_window": rng.choice([None, 64, 2047]),
        "partial_rotary_factor": rng.choice([1.0, 1.0, 0.5]),
        "resid_pdrop": _drop(rng),
        "pad_token_id": 0,
    }


def _mistral(rng: random.Random) -> Config:
    return {**_with_head_dim(rng), "sliding_window": rng.choice([None, None, 32, 4096])}


def _whole(config: Config) -> Config:
    """Experts multiply rows of whole 16 bytes."""
    return {**config, "hidden_size": -(-config["hidden_size"] // 8) * 8}


def _mixtral(rng: random.Random) -> Config:
    config = _whole(_decoder(rng))
    config.pop("rope_parameters", None)  # scaled kinds fail on its head_dim of null
    return {
        **config,
        "sliding_window": rng.choice([None, None, None, 32]),
        "num_local_experts": rng.choice([4, 5, 8]),
        "num_experts_per_tok": rng.choice([1, 2]),
        "router_jitter_noise": _drop(rng),
    }


def _qwen3_moe(rng: random.Random) -> Config:
    return {
        **_whole(_with_head_dim(rng)),
        "moe_intermediate_size": rng.choice([64, 96]),
        "num_experts": rng.choice([8, 16]),
        "num_experts_per_tok": rng.choice([2, 4]),
        "decoder_sparse_step": rng.choice([1, 1, 2]),
        "mlp_only_layers": rng.choice([[], [0]]),
        "norm_topk_prob": rng.random() < 0.5,
    }


def _gpt_oss(rng: random.Random) -> Config:
    config = _whole(_with_head_dim(rng))
    config.pop("rope_parameters", None)
    config.pop("hidden_act")
    return {
        **config,
        "sliding_window": rng.choice([16, 64, 4096]),
        "num_local_experts": 8,
        "num_experts_per_tok": rng.choice([2, 4]),
    }


def _bert(rng: random.Random) -> Config:
    drop = _drop(rng, 0.5)
    return {
        **_plain(rng),
        "hidden_act": _activation(rng, "gelu"),
        "hidden_dropout_prob": drop,
        "attention_probs_dropout_prob": drop,
        "is_decoder": rng.random() < 0.5,
    }


def _modernbert(rng: random.Random) -> Config:
    config = _plain(rng)
    biased = rng.random() < 0.2
    config["num_hidden_layers"] += 1
    return {
        **config,
        "hidden_activation": _activation(rng, "gelu"),
        "local_attention": rng.choice([16, 64, 128]),
        "global_attn_every_n_layers": rng.choice([1, 2, 3]),
        "classifier_pooling": rng.choice(["cls", "mean"]),
        "classifier_activation": _activation(rng, "gelu"),
        "attention_bias": biased,
        "mlp_bias": biased,
        "norm_bias": biased,
        "attention_dropout": _drop(rng),
        "mlp_dropout": _drop(rng),
        "embedding_dropout": _drop(rng),
        "classifier_dropout": _drop(rng),
        **{f"{kind}_token_id": number for number, kind in enumerate(("pad", "bos", "eos", "cls", "sep"))},
    }


FAMILIES: dict[str, Callable[[random.Random], Config]] = {
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "opt": _opt,
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma2": _gemma,
    "gemma3_text": _gemma,
    "phi3": _phi3,
    "olmo2": _biased,
    "mixtral": _mixtral,
    "qwen3_moe": _qwen3_moe,
    "gpt_oss": _gpt_oss,
    "bert": _bert,
    "modernbert": _modernbert,
}
