"""Small random jobs over every family and lever that the tape claims."""

from __future__ import annotations

import random
from typing import Any, get_args

from random_configs import FAMILIES

from trainmem.device import devices
from trainmem.job import Precision, TrainingJob

__all__ = ["FAMILIES", "covering_numbers", "draw_job"]

_LIGER = frozenset(
    {"gemma2", "gemma3_text", "llama", "mistral", "mixtral", "olmo2", "phi3", "qwen2", "qwen3", "qwen3_moe"}
)
_PRECISIONS = tuple(name for name in get_args(Precision) if name != "fsdp_mp_bf16")
_ROUNDABLE = ("adamw", "adamw_fused", "adamw_loop", "sgd", "sgd_momentum")
_OPTIMIZERS = (*_ROUNDABLE, "adafactor", "muon", "adamw8bit", "paged_adamw8bit", "lion8bit")
_DEVICES = tuple(device.name for device in devices() if device.compute_capability is not None)

_TARGETS: dict[str, tuple[str, ...]] = {
    "gpt2": ("c_attn", "c_proj", "c_fc"),
    "gpt_neox": ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"),
    "opt": ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"),
    "phi3": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
    "mixtral": ("q_proj", "k_proj", "v_proj", "o_proj", "gate"),
    "qwen3_moe": ("q_proj", "k_proj", "v_proj", "o_proj", "gate"),
    "gpt_oss": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "bert": ("query", "key", "value", "attention.output.dense", "intermediate.dense"),
    "modernbert": ("Wqkv", "attn.Wo", "mlp.Wo", "Wi"),
}
_LLAMA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def _shape(rng: random.Random, config: dict[str, Any]) -> dict[str, int]:
    """Mostly short sequences, of any remainder; one block may see thousands of tokens."""
    length = rng.choice([24, 64, 100, 128, 131, 200, 257])
    batch = rng.choice([1, 2, 3, 4])
    layers = config.get("num_hidden_layers", config.get("n_layer", 1))
    if layers == 1 and rng.random() < 0.3:
        return {
            "micro_batch": rng.choice([1, 2]),
            "sequence_length": rng.choice([512, 1000, 1536, 2049, 4000]),
        }
    if rng.random() < 0.05:
        batch = rng.choice([8, 17])
    return {"micro_batch": batch, "sequence_length": length}


def _adapters(rng: random.Random, family: str) -> dict[str, Any]:
    targets: str | list[str] = "all-linear"
    if rng.random() < 0.5:
        names = _TARGETS.get(family, _LLAMA_TARGETS)
        targets = rng.sample(names, rng.randint(1, len(names)))
    return {
        "lora": {"rank": rng.choice([2, 8, 16]), "targets": targets},
        "base_quantization": rng.choice(["none", "none", "nf4", "int8"]),
    }


def _sharded(rng: random.Random) -> dict[str, Any]:
    return {
        "precision": rng.choice(["fsdp_mp_bf16", "fsdp_mp_bf16", "fsdp_mp_bf16", "fp32", "bf16"]),
        "optimizer": rng.choice(_ROUNDABLE),
        "sharding": {
            "mode": "fsdp2",
            "data_parallel": rng.choice([1, 2, 3, 8, 64]),
            "reshard_after_forward": rng.random() < 0.7,
        },
    }


def draw_job(number: int) -> TrainingJob:
    """Job ``number`` of an endless sequence that goes through the families in turn."""
    rng = random.Random(number)
    family = list(FAMILIES)[number % len(FAMILIES)]
    config = {"model_type": family, **FAMILIES[family](rng)}
    classifies = rng.random() < {"modernbert": 1.0, "bert": 0.6}.get(family, 0.15)
    levers: dict[str, Any] = {
        "task": "sequence_classification" if classifies else "causal_lm",
        **_shape(rng, config),
        "accumulation": rng.choice([1, 1, 1, 1, 2, 3, 4]),
        "precision": rng.choice(_PRECISIONS),
        "attention": "eager" if family == "gpt_oss" or rng.random() < 0.3 else "sdpa",
        "checkpointing": rng.choice(["none", "none", "none", "full", "selective", "sqrt"]),
        "zero_grad": "zeros" if rng.random() < 0.15 else "none",
        "device": rng.choice(["h200", "spark"]) if rng.random() < 0.6 else rng.choice(_DEVICES),
    }
    levers["optimizer"] = rng.choice(_OPTIMIZERS)
    if levers["precision"] in ("bf16_kahan", "bf16_stochastic"):
        levers["optimizer"] = rng.choice(_ROUNDABLE)
    if not classifies and family in _LIGER and rng.random() < 0.2:
        levers["loss"] = "liger_fused"
    kind = rng.random()
    if kind < 0.25:
        levers.update(_adapters(rng, family))
    elif kind < 0.4 and levers["checkpointing"] != "sqrt":
        levers.update(_sharded(rng))
    return TrainingJob.from_json({"config": config, **levers})


_LEVERS = (
    "task",
    "precision",
    "optimizer",
    "attention",
    "checkpointing",
    "loss",
    "zero_grad",
    "base_quantization",
    "device",
)


def _said(job: TrainingJob) -> set[tuple[str, ...]]:
    """What the job is an example of: each lever's value, and the same beside its family."""
    assert job.config is not None
    family = str(job.config["model_type"])
    values = {(name, str(getattr(job, name))) for name in _LEVERS}
    values.add(("accumulation", str(min(job.accumulation, 3))))
    values.add(("sharding", f"{job.sharding.mode} {job.sharding.data_parallel == 1}"))
    values.add(("lora", "none" if job.lora is None else str(job.lora.targets == "all-linear")))
    return values | {(family, *value) for value in values}


def covering_numbers(count: int, *, among: int = 320, most_tokens: int = 800) -> list[int]:
    """Numbers of small jobs, each chosen for saying most that those before it do not."""
    jobs = {number: draw_job(number) for number in range(among)}
    said = {
        number: _said(job)
        for number, job in jobs.items()
        if job.micro_batch * job.sequence_length <= most_tokens
    }
    chosen: list[int] = []
    covered: set[tuple[str, ...]] = set()
    for _ in range(min(count, len(said))):
        best = max(said, key=lambda number: (len(said[number] - covered), -number))
        chosen.append(best)
        covered |= said.pop(best)
    return chosen
