"""What `estimate` answers through the trace, for types that no formula here describes."""

from __future__ import annotations

import pytest

from trainmem.estimate import estimate
from trainmem.job import TrainingJob
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
