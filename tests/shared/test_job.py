import copy
import json
import math
import pickle
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmem.job import LEVERS, JobError, Lora, Sharding, TrainingJob


def test_missing_keys_take_their_defaults() -> None:
    job = TrainingJob.from_json({"model": "gpt2-124m"})
    assert (job.precision, job.optimizer, job.device, job.lora) == ("amp_bf16", "adamw", "spark", None)
    assert job.sharding == Sharding()


def test_a_job_survives_json() -> None:
    job = TrainingJob(
        model="llama3.1-8b",
        lora=Lora(rank=8, targets=("q_proj", "v_proj")),
        base_quantization="nf4",
        sharding=Sharding(mode="fsdp2", data_parallel=8),
    )
    assert TrainingJob.from_json(json.loads(json.dumps(job.to_json()))) == job


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"micro_batch": 0}, "micro_batch"),
        ({"micro_batch": -3}, "micro_batch"),
        ({"micro_batch": 2.5}, "micro_batch"),
        ({"micro_batch": math.nan}, "micro_batch"),
        ({"micro_batch": True}, "micro_batch"),
        ({"micro_batch": "many"}, "micro_batch"),
        ({"sequence_length": 10**12}, "sequence_length"),
        ({"micro_batch": 10**6, "sequence_length": 10**6}, "micro_batch x sequence_length"),
        ({"precision": "fp8"}, "precision"),
        ({"precision": 16}, "precision"),
        ({"optimizer": ["adamw"]}, "optimizer"),
        ({"lora": {"rank": 0}}, "lora.rank"),
        ({"lora": {"targets": []}}, "lora.targets"),
        ({"lora": {"ranks": 1}}, "lora."),
        ({"lora": "yes"}, "lora"),
        ({"base_quantization": "nf4"}, "base_quantization"),
        ({"sharding": {"mode": "fsdp3"}}, "sharding.mode"),
        ({"sharding": {"data_parallel": 8}}, "sharding.data_parallel"),
        ({"sharding": {"reshard_after_forward": "no"}}, "sharding.reshard_after_forward"),
        ({"config": [1]}, "config"),
        ({"model": "  "}, "model"),
        ({"model": None}, "model"),
        ({"batch": 3}, '"batch"'),
        ({"device": 4}, "device"),
    ],
)
def test_wrong_input_is_one_line_that_names_the_field(change: dict[str, object], field: str) -> None:
    with pytest.raises(JobError) as caught:
        TrainingJob.from_json({"model": "gpt2-124m", **change})
    message = str(caught.value)
    assert message.startswith(field)
    assert "\n" not in message
    assert len(message) < 400


@pytest.mark.parametrize("data", [None, 3, "job", [], [{"model": "gpt2-124m"}]])
def test_what_is_no_object_is_no_job(data: object) -> None:
    with pytest.raises(JobError, match=r"^job: "):
        TrainingJob.from_json(data)


def test_numbers_from_a_form_are_numbers() -> None:
    job = TrainingJob(model="gpt2-124m", micro_batch="8", sequence_length="2,048", accumulation=4.0)  # type: ignore[arg-type]
    assert (job.micro_batch, job.sequence_length, job.accumulation) == (8, 2048, 4)


def test_the_measured_rows_name_for_momentum_is_understood() -> None:
    assert TrainingJob(model="gpt2-124m", optimizer="sgdm").optimizer == "sgd_momentum"  # type: ignore[arg-type]


@given(
    st.dictionaries(
        st.text(max_size=12),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
            lambda inner: st.lists(inner, max_size=3),
            max_leaves=4,
        ),
        max_size=4,
    ),
    st.sampled_from(sorted({*LEVERS, "micro_batch", "lora", "sharding", "config"})),
    st.integers() | st.floats() | st.text(max_size=9) | st.none(),
)
def test_any_json_is_a_job_or_a_clear_line(extra: dict[str, object], key: str, value: object) -> None:
    with suppress(JobError):
        TrainingJob.from_json({"model": "gpt2-124m", **extra, key: value})
        return
    with pytest.raises(JobError, match=r"\A[^\n]+\Z"):
        TrainingJob.from_json({"model": "gpt2-124m", **extra, key: value})


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ({"x": float("nan")}, "config.x: nan"),
        ({"x": {"y": [1 << 70]}}, "config.x: 1180591620717411303424"),
        ({"num_hidden_layers": 10**400}, "config.num_hidden_layers: a number of more than thirty digits"),
        ({"x": {1, 2}}, "config.x: set"),
        ({1: 2}, "config: 1 is not a key"),
    ],
)
def test_a_config_is_plain_json(config: dict[str, object], line: str) -> None:
    with pytest.raises(JobError, match=f"^{line}"):
        TrainingJob(config=config)


def test_a_job_made_of_another_one_keeps_its_config() -> None:
    job = TrainingJob(config={"limit": math.inf, "inner": {"a": [1, 2]}})
    other = job.with_(micro_batch=2)
    assert other.config == job.config == {"limit": {"__float__": "Infinity"}, "inner": {"a": [1, 2]}}
    assert (
        other
        != job
        == other.with_(micro_batch=1)
        == TrainingJob.from_json(json.loads(json.dumps(job.to_json())))
    )
    assert pickle.loads(pickle.dumps(other)).with_(micro_batch=1) == copy.deepcopy(job)
    with pytest.raises(JobError, match=r"config\.a: set"):
        other.with_(config={"a": {1}})


def test_a_config_nested_without_end_is_refused() -> None:
    config: dict[str, object] = {}
    for _ in range(400):
        config = {"x": config}
    with pytest.raises(JobError, match="nested more than 32 deep"):
        TrainingJob(config=config)


def test_true_is_not_one() -> None:
    assert TrainingJob(config={"tie": True}) != TrainingJob(config={"tie": 1})
    assert TrainingJob(config={"a": 1, "b": 2}) == TrainingJob(config={"b": 2, "a": 1})


def test_a_number_of_any_length_is_one_line() -> None:
    with pytest.raises(JobError, match=r"^micro_batch: a number of more than thirty digits"):
        TrainingJob(model="gpt2-124m", micro_batch=10**400)


@pytest.mark.parametrize(
    ("given", "kept"),
    [(["all-linear"], "all-linear"), ([" q_proj "], ("q_proj",)), ("q_proj, v_proj", ("q_proj", "v_proj"))],
)
def test_targets_have_one_spelling(given: object, kept: object) -> None:
    assert Lora(targets=given).targets == kept  # type: ignore[arg-type]


@pytest.mark.parametrize("targets", [["a,b"], [" "], [], [3], ""])
def test_targets_that_are_no_names_are_refused(targets: object) -> None:
    with pytest.raises(JobError, match=r"^lora\.targets: "):
        Lora(targets=targets)  # type: ignore[arg-type]
