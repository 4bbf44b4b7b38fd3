"""Options that change a step and that the tape does not replay are refused by name, in the families that read them."""

from __future__ import annotations

from typing import Any

import pytest

from trainmem.estimate import estimate
from trainmem.job import Sharding, TrainingJob
from trainmem.model import resolve
from trainmem.tape import Unsupported, record

_SMALL = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}


def _job(family: str, **config: Any) -> TrainingJob:
    whole = {"model_type": family, **_SMALL, "num_attention_heads": 4, "num_key_value_heads": 4, **config}
    return TrainingJob(config=whole, micro_batch=2, sequence_length=32, precision="bf16", device="h200")


_REFUSED: list[tuple[str, str, Any]] = [
    ("bert", "chunk_size_feed_forward", 8),
    ("opt", "layerdrop", 0.1),
    ("llama", "output_attentions", True),
    ("gpt2", "output_hidden_states", True),
    ("mixtral", "output_router_logits", True),
    ("gemma3_text", "use_bidirectional_attention", True),
]


@pytest.mark.parametrize(("family", "key", "value"), _REFUSED)
def test_an_option_that_changes_the_step_is_refused_by_name(family: str, key: str, value: Any) -> None:
    job = _job(family, **{key: value})
    with pytest.raises(Unsupported, match=key):
        record(job, resolve(job).architecture)


@pytest.mark.parametrize(("family", "key", "value"), _REFUSED)
def test_the_same_option_switched_off_is_no_obstacle(family: str, key: str, value: Any) -> None:
    job = _job(family, **{key: type(value)()})
    assert record(job, resolve(job).architecture).events


def test_an_option_that_a_family_does_not_read_is_no_obstacle() -> None:
    plain, job = _job("llama"), _job("llama", layerdrop=0.1, chunk_size_feed_forward=8)
    assert record(job, resolve(job).architecture).events == record(plain, resolve(plain).architecture).events


def test_the_whiteboard_answers_in_its_place_and_names_the_command_that_knows() -> None:
    answer = estimate(_job("opt", layerdrop=0.1))
    assert answer.engine == "whiteboard"
    assert any("layerdrop" in warning and "trainmem trace" in warning for warning in answer.warnings)


def test_frequencies_that_grow_with_the_sequence_are_refused_where_they_grow() -> None:
    """Dynamic scaling computes them anew beyond the trained length; below it, it only compares."""
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    within = _job("llama", rope_parameters=rope, max_position_embeddings=32)
    compared = [op for op in record(within, resolve(within).architecture).op_of if op.endswith("compared")]
    assert len(compared) == 2 * 3  # of each of three steps
    beyond = _job("llama", rope_parameters=rope, max_position_embeddings=31)
    with pytest.raises(Unsupported, match="rope_parameters"):
        record(beyond, resolve(beyond).architecture)


def test_experts_whose_rows_a_grouped_product_fills_up_are_refused() -> None:
    """In 16 bits a row of 12 elements is no whole 16 bytes."""
    job = _job("mixtral", hidden_size=12, num_attention_heads=1, num_key_value_heads=1)
    with pytest.raises(Unsupported, match="hidden_size"):
        record(job, resolve(job).architecture)


def test_master_weights_of_shards_are_refused() -> None:
    """Left out they would take a tenth of the peak away."""
    job = TrainingJob.from_json({**_job("llama").to_json(), "precision": "bf16_master"})
    sharded = job.with_(sharding=Sharding(mode="fsdp2", data_parallel=2))
    with pytest.raises(Unsupported, match="precision"):
        record(sharded, resolve(sharded).architecture)
