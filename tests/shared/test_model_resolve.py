"""A job's architecture, and the checks that need the job and the model together."""

from __future__ import annotations

import math
from typing import Any

import pytest

from trainmem.job import JobError, Lora, Sharding, TrainingJob
from trainmem.model import UnknownFamily
from trainmem.model.catalogue import entries, find
from trainmem.model.resolve import resolve


def test_a_config_wins_over_the_model_name() -> None:
    config = dict(find("gpt2-124m").config)
    resolved = resolve(TrainingJob(model="llama3.1-8b", config=config))
    assert resolved.architecture.family == "gpt2"
    assert resolved.name == "this gpt2 config"


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.name)
def test_every_entry_resolves_for_its_task(entry: Any) -> None:
    job = TrainingJob(model=entry.name, task=entry.task, sequence_length=128, attention="eager")
    resolved = resolve(job)
    assert resolved.name == entry.name
    assert resolved.architecture == entry.architecture()
    assert resolved.warnings == (() if entry.note is None else (f"{entry.name}: {entry.note}",))


@pytest.mark.parametrize(("model", "limit"), [("gpt2-774m", 1024), ("opt-1.3b", 2048), ("bert-base", 512)])
def test_a_position_table_is_a_hard_limit(model: str, limit: int) -> None:
    resolve(TrainingJob(model=model, sequence_length=limit))
    with pytest.raises(JobError) as error:
        resolve(TrainingJob(model=model, sequence_length=limit + 1))
    assert str(error.value) == (
        f"sequence_length: {limit + 1:,} is longer than the position table of {model}; "
        f"allowed are 1 to {limit:,}"
    )


def test_a_config_with_more_positions_takes_longer_sequences() -> None:
    config = {**find("gpt2-124m").config, "n_positions": 4096}
    assert resolve(TrainingJob(config=config, sequence_length=4096)).architecture.max_positions == 4096


def test_rotary_positions_are_a_soft_limit() -> None:
    assert resolve(TrainingJob(model="llama2-7b", sequence_length=4096)).warnings == ()
    (warning,) = resolve(TrainingJob(model="llama2-7b", sequence_length=4097)).warnings
    assert "4,097" in warning
    assert "4,096" in warning


def test_a_task_without_a_model_is_refused() -> None:
    with pytest.raises(JobError, match=r"^task: "):
        resolve(TrainingJob(model="modernbert-base"))


def test_an_unknown_family_points_to_the_trace() -> None:
    with pytest.raises(UnknownFamily, match="trainmem trace"):
        resolve(TrainingJob(config={"model_type": "mamba"}))


def test_lora_targets_that_match_nothing_are_refused_with_those_allowed() -> None:
    job = TrainingJob(model="gpt2-124m", lora=Lora(targets=("q_proj", "v_proj")))
    with pytest.raises(JobError) as error:
        resolve(job)
    assert str(error.value) == (
        'lora.targets: "q_proj, v_proj" names no linear layer of this gpt2; '
        "allowed are all-linear or some of c_attn, c_proj, c_fc"
    )


def test_lora_targets_match_as_in_peft() -> None:
    def warnings(*targets: str) -> tuple[str, ...]:
        return resolve(TrainingJob(model="llama3.2-1b", lora=Lora(targets=targets))).warnings

    assert warnings("q_proj", "self_attn.v_proj") == ()
    (warning,) = warnings("q_proj", "proj")
    assert warning.startswith('lora.targets: "proj" names no linear layer of llama3.2-1b')


def test_experts_that_stay_unpacked_are_said() -> None:
    job = TrainingJob(model="gpt-oss-20b", lora=Lora(), base_quantization="nf4")
    assert any("19.1 of 20.9 billion parameters, stay in 32 bit" in w for w in resolve(job).warnings)
    assert any("stay in 16 bit" in w for w in resolve(job.with_(precision="bf16")).warnings)
    dense = job.with_(model="llama3.2-1b")
    assert not any("packs" in w for w in resolve(dense).warnings)


def test_experts_without_adapters_are_said() -> None:
    assert any("experts" in w for w in resolve(TrainingJob(model="gpt-oss-20b", lora=Lora())).warnings)
    assert resolve(TrainingJob(model="mixtral-8x7b", lora=Lora())).warnings == ()


def test_a_model_deeper_than_any_is_refused() -> None:
    config = {"model_type": "llama", "num_hidden_layers": 1000, "hidden_size": 64, "num_attention_heads": 4}
    assert resolve(TrainingJob(config=config)).architecture.layers == 1000
    with pytest.raises(JobError, match=r"num_hidden_layers: 1001 is not a whole number from 1 to 1,000"):
        resolve(TrainingJob(config={**config, "num_hidden_layers": 1001}))


def test_equal_jobs_share_one_result() -> None:
    config = dict(find("qwen3-8b").config)
    shuffled = dict(reversed(config.items()))
    assert resolve(TrainingJob(config=config)) is resolve(TrainingJob(config=shuffled))
    assert (
        resolve(TrainingJob(config=config, sequence_length=8)).architecture
        is resolve(TrainingJob(config=config, sequence_length=16)).architecture
    )


def deep(levels: int) -> dict[str, Any]:
    config: dict[str, Any] = {"model_type": "llama"}
    for _ in range(levels):
        config = {"model_type": "llama", "inner": config}
    return config


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"model_type": "llama", "hidden_size": math.nan},
        {"model_type": "llama", "x": object()},
        deep(100_000),
    ],
    ids=["empty", "nan", "object", "deep"],
)
def test_a_bad_config_is_refused_in_one_line(config: dict[str, Any]) -> None:
    with pytest.raises(JobError) as error:
        resolve(TrainingJob(config=config))
    assert str(error.value).startswith("config")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("sharding", "line"),
    [
        (
            Sharding(tensor_parallel=999),
            "sharding.tensor_parallel: 999 does not divide the 12 heads of gpt2-124m; allowed are 1, 2, 3, 4, 6, 12",
        ),
        (
            Sharding(pipeline_parallel=999),
            "sharding.pipeline_parallel: 999 stages are more than the 12 blocks of gpt2-124m; allowed are 1 to 12",
        ),
    ],
)
def test_a_model_is_divided_into_whole_heads_and_blocks(sharding: Sharding, line: str) -> None:
    with pytest.raises(JobError) as error:
        resolve(TrainingJob(model="gpt2-124m", sharding=sharding))
    assert str(error.value) == line
    resolve(TrainingJob(model="gpt2-124m", sharding=Sharding(tensor_parallel=6, pipeline_parallel=12)))


def test_a_quantized_checkpoint_is_said_to_be_taken_as_plain() -> None:
    config = {**find("llama3.1-8b").config, "quantization_config": {"quant_method": "gptq", "bits": 4}}
    (warning,) = resolve(TrainingJob(config=config)).warnings
    assert "quantization_config is ignored" in warning
    assert "base_quantization" in warning


def test_gemma_2_is_said_to_be_eager_under_newer_transformers() -> None:
    job = TrainingJob(model="gemma2-2b")
    assert "from 5.21 on it runs with eager attention" in " ".join(resolve(job).warnings)
    assert not resolve(job.with_(attention="eager")).warnings
    assert not resolve(TrainingJob(model="gemma3-1b")).warnings
