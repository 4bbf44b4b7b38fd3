"""A model is made on the device by the same allocations and frees in the tape and in the trace.

Temporaries of loading touch no peak, but what is kept lies between them: reserved memory follows from them.
"""

from __future__ import annotations

from typing import Any

import pytest

from trainmem.job import Lora, Sharding, TrainingJob
from trainmem.model import resolve
from trainmem.model.catalogue import find
from trainmem.recording import Recording, counters, read_step
from trainmem.tape import record

pytestmark = pytest.mark.torch

_SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
}
_SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "longrope": {
        "factor": 4.0,
        "short_factor": [1.0] * 8,
        "long_factor": [2.0] * 8,
        "original_max_position_embeddings": 64,
    },
}


def _job(model_type: str, config: dict[str, Any] | None = None, **levers: Any) -> TrainingJob:
    values = {"model_type": model_type, **_SIZES, **(config or {})}
    return TrainingJob(
        **{"config": values, "micro_batch": 1, "sequence_length": 32, "device": "h200", **levers}
    )


def _rope(kind: str) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": 10_000.0, **_SCALINGS.get(kind, {})}


JOBS = {
    **{f"llama {kind}": _job("llama", {"rope_parameters": _rope(kind)}) for kind in _SCALINGS},
    "llama rope_scaling": _job("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}}),
    "phi3 longrope": _job("phi3", {"rope_scaling": {**_rope("longrope"), "rope_type": "su"}}),
    "gpt_oss yarn": _job("gpt_oss", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "gpt_oss default": _job(
        "gpt_oss",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "rope_parameters": _rope("default")},
    ),
    "gemma3 two kinds": _job(
        "gemma3_text",
        {
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
    ),
    "gemma2 bf16": _job("gemma2", precision="bf16"),
    "opt narrow": _job("opt", {"word_embed_proj_dim": 32, "ffn_dim": 96}),
    "bert": _job("bert", task="sequence_classification"),
    "bert head": _job("bert"),
    "bert head untied": _job("bert", {"tie_word_embeddings": False}),
    "qwen3_moe adapters of parameters": _job(
        "qwen3_moe",
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
        lora=Lora(rank=2, targets=("q_proj", "gate")),
        precision="bf16",
    ),
    "mixtral packed": _job(
        "mixtral",
        {"num_local_experts": 4, "num_experts_per_tok": 2},
        lora=Lora(rank=2),
        base_quantization="nf4",
    ),
    "gpt_oss sharded": _job(
        "gpt_oss",
        {"num_local_experts": 4, "num_experts_per_tok": 2},
        sharding=Sharding(mode="fsdp2", data_parallel=4),
    ),
}


def _loading(recording: Recording) -> list[int]:
    """The events before the first step; frees between two allocations in the order of what they free."""
    end = next(mark.event for mark in recording.marks if mark.step == 1)
    out: list[int] = []
    freed: list[int] = []
    for event in recording.events[:end]:
        if event < 0:
            freed.append(event)
            continue
        out += sorted(freed)
        freed.clear()
        out.append(event)
    return out + sorted(freed)


@pytest.mark.parametrize("name", JOBS)
def test_loading(name: str) -> None:
    from trainmem_backend.trace import trace

    job = JOBS[name]
    tape, traced = record(job, resolve(job).architecture), trace(job, steps=1)
    assert _loading(tape) == _loading(traced)


@pytest.mark.parametrize(
    ("model", "micro_batch", "sequence_length"),
    [("modernbert-base", 2, 100), ("modernbert-base", 1, 257), ("modernbert-large", 1, 64)],
)
def test_modernbert_under_every_torch(model: str, micro_batch: int, sequence_length: int) -> None:
    """Its truncated normal weights are drawn in place, which torch 2.12 and newer do not do by themselves."""
    from trainmem_backend.trace import trace

    job = TrainingJob(
        config={**find(model).config, "num_hidden_layers": 4},
        task="sequence_classification",
        micro_batch=micro_batch,
        sequence_length=sequence_length,
        precision="bf16_master",
        device="h200",
    )
    tape, traced = record(job, resolve(job).architecture), trace(job)
    assert _loading(tape) == _loading(traced)
    ours, theirs = (read_step(each, counters(each), 3) for each in (tape, traced))
    assert ours.peak_allocated_bytes == theirs.peak_allocated_bytes
    assert ours.peak_reserved_bytes == theirs.peak_reserved_bytes


def test_attention_that_transformers_does_not_have_is_said() -> None:
    from trainmem_backend.trace import trace

    job = JOBS["gpt_oss yarn"]
    notes = trace(job, steps=1).notes
    assert any("has no sdpa for gpt_oss, so that it runs with eager attention" in note for note in notes)
    assert not trace(job.with_(attention="eager"), steps=1).notes
