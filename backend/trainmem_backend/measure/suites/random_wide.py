"""Random jobs over what `random_jobs` does not reach: every model of the catalogue, and every lever of one rank.

A model too large is cut to a few of its blocks, which keep their width: so 405B parameters, and experts, take part.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from trainmem.job import Lora, Sharding
from trainmem.model import catalogue
from trainmem_backend.measure.suites.random_jobs import (
    MOST_PARAMETERS,
    OPTIMIZERS,
    PRECISIONS,
    ROUNDED,
    drawn,
)
from trainmem_backend.measure.trial import Trial

__all__ = ["trials"]

_JOBS = 192

_TARGETS: dict[str, tuple[str, ...]] = {
    "gpt2": ("c_attn", "c_proj", "c_fc"),
    "gpt_neox": ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"),
    "opt": ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"),
    "phi3": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
    "mixtral": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "qwen3_moe": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "gpt_oss": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "bert": ("query", "key", "value"),
    "modernbert": ("Wqkv", "Wo", "Wi"),
}
_USUAL_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_WITHOUT_FUSED_LOSS = ("bert", "gpt2", "gpt_neox", "gpt_oss", "modernbert", "opt")
"""Families that Liger has no loss for."""


def trials() -> list[Trial]:
    """Every family is as likely as any other, however many models the catalogue has of it."""
    families: dict[str, list[Any]] = {}
    for entry in catalogue.entries():
        families.setdefault(entry.config["model_type"], []).append(entry)
    return drawn("random-wide", _JOBS, lambda rng: _draw(rng, families))


def _draw(rng: random.Random, families: Mapping[str, Sequence[Any]]) -> tuple[str, dict[str, Any]]:
    family = rng.choice(list(families))
    entry = rng.choice(families[family])
    config, name = _config(rng, entry)
    classifies = entry.task == "sequence_classification" or rng.random() < 0.15
    fused = not classifies and family not in _WITHOUT_FUSED_LOSS and rng.random() < 0.2
    precision = rng.choice(PRECISIONS)
    levers: dict[str, Any] = {
        "config": config,
        "task": "sequence_classification" if classifies else "causal_lm",
        "micro_batch": rng.choice((1, 1, 2, 3, 4, 5, 8, 16)),
        "sequence_length": rng.choice((128, 512, 1024, 2048, 4096, *[rng.randint(16, 4096)] * 5)),
        "accumulation": rng.choice((1, 1, 1, 2, 4)),
        "precision": precision,
        "optimizer": rng.choice(ROUNDED if precision in ("bf16_kahan", "bf16_stochastic") else OPTIMIZERS),
        "attention": rng.choice(("sdpa", "sdpa", "eager")),
        "checkpointing": rng.choice(("none", "none", "full", "selective", "sqrt")),
        "loss": "liger_fused" if fused else "standard",
        "zero_grad": "zeros" if rng.random() < 0.1 else "none",
    }
    kind = rng.random()
    if kind < 0.35:
        levers |= _adapted(rng, family)
    elif kind < 0.5:
        levers |= _sharded(rng)
    return name, levers


def _config(rng: random.Random, entry: Any) -> tuple[dict[str, Any], str]:
    """The entry's config, cut where it is too large; at times with tokens added, or dropout in attention."""
    config, name = dict(entry.config), entry.name
    if entry.architecture().parameter_count >= MOST_PARAMETERS:
        blocks = rng.choice((1, 2, 3, 5))
        config["n_layer" if "n_layer" in config else "num_hidden_layers"] = blocks
        name += f" cut to {blocks} block{'s'[: blocks - 1]}"
    if rng.random() < 0.3:
        config["vocab_size"] += rng.choice((1, 3, 64))
    if "attention_dropout" in config and rng.random() < 0.15:
        config["attention_dropout"] = 0.1
    return config, name


def _adapted(rng: random.Random, family: str) -> dict[str, Any]:
    names = _TARGETS.get(family, _USUAL_TARGETS)
    some = tuple(sorted(rng.sample(names, rng.randint(1, len(names)))))
    return {
        "lora": Lora(rank=rng.choice((2, 8, 32, 128)), targets=rng.choice(("all-linear", some))),
        "base_quantization": rng.choice(("none", "nf4", "int8")),
    }


def _sharded(rng: random.Random) -> dict[str, Any]:
    """One rank of several, over a group that moves nothing."""
    ranks = rng.choice((2, 3, 8, 64))
    return {
        "precision": rng.choice(("fsdp_mp_bf16", "fsdp_mp_bf16", "fp32", "bf16")),
        "optimizer": rng.choice(ROUNDED),
        "sharding": Sharding(mode="fsdp2", data_parallel=ranks, reshard_after_forward=rng.random() < 0.7),
    }
