"""What the families' blocks share: activations by name, masks by length, tables by kind."""

from __future__ import annotations

from typing import Any

import pytest

from trainmem.job import TrainingJob
from trainmem.model import resolve
from trainmem.model.config import _ACTIVATIONS
from trainmem.recording import Recording
from trainmem.tape import Unsupported, record
from trainmem.tape.activations import ACTIVATIONS
from trainmem.tape.families import FIRST_OF_ITS_KIND, FORWARD
from trainmem.tape.structure import structure_of

_SMALL = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}


def _job(family: str, length: int = 64, config: dict[str, Any] | None = None, **levers: Any) -> TrainingJob:
    whole = {"model_type": family, **_SMALL, "num_attention_heads": 4, **(config or {})}
    return TrainingJob(
        config=whole, micro_batch=2, sequence_length=length, precision="bf16", device="h200", **levers
    )


def _recording(job: TrainingJob) -> Recording:
    return record(job, resolve(job).architecture)


def _sizes(recording: Recording, op: str) -> list[int]:
    allocations = [event for event in recording.events if event > 0]
    return [size for size, name in zip(allocations, recording.op_of, strict=True) if name.endswith(op)]


def test_every_activation_is_known_or_refused_by_name() -> None:
    assert set(ACTIVATIONS) <= set(_ACTIVATIONS)
    for name in set(_ACTIVATIONS) - set(ACTIVATIONS):
        job = _job("llama", config={"hidden_act": name})
        with pytest.raises(Unsupported, match=name):
            structure_of(job, resolve(job).architecture)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_every_activation_runs_at_the_width_of_the_mlp(name: str) -> None:
    """Forward and backward; nothing it makes is wider than its input in 16 bits."""
    made = _sizes(_recording(_job("gpt_neox", config={"hidden_act": name})), f"act: {name}")
    width = 2 * 64 * 96 * 2
    assert set(made) <= {width}


@pytest.mark.parametrize(("length", "masked"), [(15, False), (16, True), (64, True)])
def test_a_sliding_window_needs_a_mask_from_its_own_length_on(length: int, masked: bool) -> None:
    job = _job("gemma2", length, {"num_key_value_heads": 2, "head_dim": 16, "sliding_window": 16})
    assert structure_of(job, resolve(job).architecture).windowed == masked
    biases = [size for size in _sizes(_recording(job), "attention bias") if size > 2]
    assert bool(biases) == masked
    assert set(biases) <= {2 * 2 * length * length}


def test_an_encoders_window_reaches_half_of_it_to_either_side() -> None:
    config = {"local_attention": 32, "num_hidden_layers": 3}
    levers: dict[str, Any] = {"task": "sequence_classification"}
    for length, masked in ((15, False), (16, True)):
        job = _job("modernbert", length, config, **levers)
        assert structure_of(job, resolve(job).architecture).windowed == masked


def test_repeated_key_heads_are_copied_only_beside_a_mask() -> None:
    config = {"num_key_value_heads": 2, "head_dim": 16, "sliding_window": 16}
    kinds = {"layer_types": ["full_attention", "full_attention"]}
    assert _sizes(_recording(_job("gemma2", config=config)), "repeat_kv")
    assert not _sizes(_recording(_job("gemma2", config={**config, **kinds})), "repeat_kv")
    single = {**config, "num_key_value_heads": 1}
    assert not _sizes(_recording(_job("gemma2", config=single)), ": repeat_kv")


def test_a_table_of_few_rows_is_summed_by_atomics() -> None:
    """BERT's two token types, above 3,072 tokens, in 16 bits: an fp32 table of two rows beside the gradient."""
    config = {"max_position_embeddings": 512, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    job = _job("bert", 512, config, task="sequence_classification")
    few = _recording(job)
    assert not _sizes(few, "embedding accumulator")
    many = _recording(
        TrainingJob(
            config=job.config,
            micro_batch=8,
            sequence_length=512,
            precision="bf16",
            device="h200",
            task="sequence_classification",
        )
    )
    assert set(_sizes(many, "embedding accumulator")) == {4 * 2 * 64}


def test_an_odd_share_of_a_head_is_rotated_by_a_table_of_even_width() -> None:
    """A quarter of 12 elements is 3, whose frequencies are those of elements 0 and 2: the table is 4 wide."""
    config = {"hidden_size": 48, "rotary_pct": 0.25}
    made = _sizes(_recording(_job("gpt_neox", config=config)), "rotary_emb: frequencies")
    assert set(made) == {4 * 64 * 2}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            _job("llama", config={"num_key_value_heads": 2}),
            _job("mistral", config={"num_key_value_heads": 2, "sliding_window": None}),
        ),
        (
            _job("gemma3_text", config={"sliding_window": 16}),
            _job("gemma3_text", config={"sliding_window": 32}),
        ),
    ],
)
def test_models_whose_forward_pass_is_the_same_share_a_program(one: TrainingJob, other: TrainingJob) -> None:
    assert len({structure_of(job, resolve(job).architecture) for job in (one, other)}) == 1
    assert len(set(FIRST_OF_ITS_KIND.values())) == len(set(FORWARD.values()))
