"""What `estimate` answers through the trace, for types that no formula here describes."""

from __future__ import annotations

import json

import pytest

from trainmem.estimate import estimate
from trainmem.job import Lora, TrainingJob
from trainmem.model import UnknownFamily

pytestmark = pytest.mark.torch

_MAMBA = {
    "model_type": "mamba",
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "state_size": 4,
    "vocab_size": 128,
}
_MIXTURE = {
    "model_type": "olmoe",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "vocab_size": 128,
}


@pytest.mark.parametrize("config", [_MAMBA, _MIXTURE], ids=lambda config: str(config["model_type"]))
def test_a_type_without_a_sum_is_traced(config: dict[str, object]) -> None:
    job = TrainingJob(config=config, micro_batch=2, sequence_length=32, device="h200")
    with pytest.raises(UnknownFamily, match="trainmem trace"):
        estimate(job)
    answer = estimate(job, engine="trace")
    assert answer.parameters > 0
    assert sum(answer.buckets_at_peak.values()) == answer.peak_allocated_bytes


def test_adapters_on_named_layers_of_an_unknown_type() -> None:
    config = {
        "model_type": "stablelm",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": 128,
    }
    job = TrainingJob(
        config=config,
        micro_batch=2,
        sequence_length=32,
        precision="bf16",
        lora=Lora(rank=4, targets=("q_proj", "v_proj")),
        device="h200",
    )
    with pytest.raises(UnknownFamily, match=r"lora\.targets: .*trainmem trace"):
        estimate(job)
    answer = estimate(job, engine="trace")
    assert answer.trainable_parameters == 2 * 4 * (64 + 64)
    assert not answer.warnings


def test_an_infinite_number_of_a_config_reaches_the_model() -> None:
    config = {**_MAMBA, "time_step_limit": [0.0, float("inf")], "model_type": "mamba2", "num_heads": 8}
    config |= {"head_dim": 16, "expand": 2, "n_groups": 1, "chunk_size": 16}
    job = TrainingJob(config=config, micro_batch=1, sequence_length=32, device="h200")
    assert json.loads(json.dumps(job.to_json(), allow_nan=False))["config"]["time_step_limit"] == [
        0.0,
        {"__float__": "Infinity"},
    ]
    assert TrainingJob.from_json(job.to_json()) == job
    assert estimate(job, engine="trace").parameters > 0
