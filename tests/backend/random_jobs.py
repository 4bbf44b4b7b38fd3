"""Small random jobs over every family and lever that the tape claims."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from trainmem.job import TrainingJob

__all__ = ["FAMILIES", "draw_job"]

Config = dict[str, Any]

_LIGER = frozenset(
    {
        "gemma2",
        "gemma3_text",
        "llama",
        "mistral",
        "mixtral",
        "olmo2",
        "phi3",
        "qwen2",
        "qwen3",
        "qwen3_moe",
    }
)
_PRECISIONS = (
    "fp32",
    "amp_bf16",
    "amp_fp16",
    "bf16",
    "bf16_master",
    "bf16_master_fp32_grads",
    "bf16_kahan",
    "bf16_stochastic",
)
_OPTIMIZERS = (
    "adamw",
    "adamw_fused",
    "adamw_loop",
    "sgd",
    "sgd_momentum",
    "adafactor",
    "muon",
    "adamw8bit",
    "paged_adamw8bit",
    "lion8bit",
)


def _heads(rng: random.Random, *, grouped: bool = True) -> Config:
    heads, group = rng.choice([(4, 1), (4, 2), (4, 4), (6, 3), (8, 2), (2, 1)])
    return {
        "num_attention_heads": heads,
        **({"num_key_value_heads": heads // (group if rng.random() < 0.7 else 1)} if grouped else {}),
    }


def _decoder(rng: random.Random) -> Config:
    heads = _heads(rng)
    return {
        "vocab_size": rng.choice([512, 1000, 2048, 5003]),
        "hidden_size": heads["num_attention_heads"] * rng.choice([16, 32, 64]),
        "intermediate_size": rng.choice([128, 344, 512, 1024]),
        "num_hidden_layers": rng.choice([1, 1, 2, 2, 2, 3, 3, 6]),
        "tie_word_embeddings": rng.random() < 0.4,
        **heads,
    }


def _with_head_dim(rng: random.Random) -> Config:
    return {**_decoder(rng), "head_dim": rng.choice([16, 32, 64])}


def _gpt2(rng: random.Random) -> Config:
    head = rng.choice([2, 4, 6])
    drop = 0.1 if rng.random() < 0.3 else 0.0
    return {
        "vocab_size": rng.choice([512, 1000, 5003]),
        "n_positions": 1024,
        "n_embd": head * rng.choice([16, 32, 64]),
        "n_layer": rng.choice([1, 2, 2, 3, 6]),
        "n_head": head,
        "resid_pdrop": drop,
        "embd_pdrop": drop,
        "attn_pdrop": drop,
    }


def _gpt_neox(rng: random.Random) -> Config:
    config = _decoder(rng)
    config.pop("num_key_value_heads")
    return {
        **config,
        "rotary_pct": rng.choice([0.25, 0.5, 1.0]),
        "use_parallel_residual": rng.random() < 0.7,
        "max_position_embeddings": 1024,
    }


def _opt(rng: random.Random) -> Config:
    config = _decoder(rng)
    config.pop("num_key_value_heads")
    config["ffn_dim"] = config.pop("intermediate_size")
    drop = 0.1 if rng.random() < 0.3 else 0.0
    return {
        **config,
        "word_embed_proj_dim": config["hidden_size"],
        "max_position_embeddings": 1024,
        "dropout": drop,
        "attention_dropout": 0.0,
    }


def _windowed(rng: random.Random) -> Config:
    return {**_with_head_dim(rng), "sliding_window": rng.choice([16, 64, 4096])}


def _phi3(rng: random.Random) -> Config:
    return {**_decoder(rng), "sliding_window": rng.choice([None, 2047]), "pad_token_id": 0}


def _mistral(rng: random.Random) -> Config:
    return {**_decoder(rng), "sliding_window": rng.choice([None, None, 32, 4096])}


def _mixtral(rng: random.Random) -> Config:
    return {
        **_decoder(rng),
        "num_local_experts": rng.choice([4, 5, 8]),
        "num_experts_per_tok": rng.choice([1, 2]),
    }


def _qwen3_moe(rng: random.Random) -> Config:
    return {
        **_with_head_dim(rng),
        "moe_intermediate_size": rng.choice([64, 96]),
        "num_experts": rng.choice([8, 16]),
        "num_experts_per_tok": rng.choice([2, 4]),
        "decoder_sparse_step": rng.choice([1, 1, 2]),
        "mlp_only_layers": rng.choice([[], [0]]),
        "norm_topk_prob": rng.random() < 0.5,
    }


def _gpt_oss(rng: random.Random) -> Config:
    return {**_windowed(rng), "num_local_experts": 8, "num_experts_per_tok": rng.choice([2, 4])}


def _bert(rng: random.Random) -> Config:
    config = _decoder(rng)
    config.pop("num_key_value_heads")
    drop = 0.1 if rng.random() < 0.5 else 0.0
    return {**config, "hidden_dropout_prob": drop, "attention_probs_dropout_prob": drop}


def _modernbert(rng: random.Random) -> Config:
    config = _decoder(rng)
    config.pop("num_key_value_heads")
    config["num_hidden_layers"] += 1
    return {
        **config,
        "local_attention": rng.choice([16, 64, 128]),
        "global_attn_every_n_layers": rng.choice([2, 3]),
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "cls_token_id": 1,
        "sep_token_id": 2,
    }


FAMILIES: dict[str, Callable[[random.Random], Config]] = {
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "opt": _opt,
    "llama": _decoder,
    "mistral": _mistral,
    "qwen2": _decoder,
    "qwen3": _with_head_dim,
    "gemma2": _windowed,
    "gemma3_text": _windowed,
    "phi3": _phi3,
    "olmo2": _decoder,
    "mixtral": _mixtral,
    "qwen3_moe": _qwen3_moe,
    "gpt_oss": _gpt_oss,
    "bert": _bert,
    "modernbert": _modernbert,
}


def draw_job(number: int) -> TrainingJob:
    """Job ``number`` of an endless sequence that goes through the families in turn."""
    rng = random.Random(number)
    family = list(FAMILIES)[number % len(FAMILIES)]
    config = {"model_type": family, **FAMILIES[family](rng)}
    encoder = family in ("bert", "modernbert")
    levers: dict[str, Any] = {
        "task": "sequence_classification" if encoder or rng.random() < 0.1 else "causal_lm",
        "micro_batch": rng.choice([1, 2, 3, 4]),
        "sequence_length": rng.choice([24, 64, 100, 128, 257]),
        "accumulation": rng.choice([1, 1, 1, 1, 2, 3]),
        "precision": rng.choice(_PRECISIONS),
        "attention": "eager" if family == "gpt_oss" or rng.random() < 0.3 else "sdpa",
        "checkpointing": rng.choice(["none", "none", "none", "full", "selective", "sqrt"]),
        "zero_grad": "zeros" if rng.random() < 0.15 else "none",
        "device": rng.choice(["h200", "h200", "spark"]),
    }
    levers["optimizer"] = rng.choice(_OPTIMIZERS)
    if levers["precision"] in ("bf16_kahan", "bf16_stochastic"):
        levers["optimizer"] = rng.choice(_OPTIMIZERS[:5])
    if levers["task"] == "causal_lm" and family in _LIGER and rng.random() < 0.15:
        levers["loss"] = "liger_fused"
    if rng.random() < 0.25 and levers["task"] == "causal_lm":
        levers["lora"] = {"rank": rng.choice([2, 8]), "targets": "all-linear"}
        levers["precision"] = rng.choice(["fp32", "amp_bf16", "bf16"])
        levers["optimizer"] = rng.choice(_OPTIMIZERS)
        levers["base_quantization"] = rng.choice(["none", "none", "nf4", "int8"])
    return TrainingJob.from_json({"config": config, **levers})
