"""The form and the job say the same, and wrong input points at the control that holds it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmem.job import LEVERS, JobError, Lora, Sharding, TrainingJob
from trainmem_space.levers import FORM, PASTED, form_from_job, job_from_form, lever_of_error

JOB = TrainingJob(model="gpt2-774m", micro_batch=8)


def test_every_field_of_a_job_has_a_control():
    fields = {lever.field.partition(".")[0] for lever in FORM.values()}
    assert fields == set(JOB.to_json())
    inside = {lever.field for lever in FORM.values() if lever.field.startswith("sharding.")}
    assert inside == {f"sharding.{name}" for name in Sharding().to_json()}


@pytest.mark.parametrize("name", LEVERS)
def test_every_choice_is_offered_under_a_name_of_its_own(name):
    choices = FORM[name].choices
    assert tuple(value for _, value in choices) == LEVERS[name]
    assert len({label for label, _ in choices}) == len(choices)


@pytest.mark.parametrize("key", FORM)
def test_every_lever_says_what_it_moves_in_one_line(key):
    assert 10 < len(FORM[key].moves) <= 110
    assert FORM[key].moves.endswith(".")


jobs = st.builds(
    TrainingJob,
    model=st.sampled_from(["gpt2-774m", "llama3.2-1b"]),
    micro_batch=st.integers(1, 64),
    sequence_length=st.integers(1, 1024),
    accumulation=st.integers(1, 8),
    lora=st.none() | st.builds(Lora, rank=st.integers(1, 64)) | st.just(Lora(targets="q_proj, v_proj")),
    sharding=st.just(Sharding())
    | st.builds(Sharding, mode=st.sampled_from(["zero3", "fsdp2"]), data_parallel=st.integers(1, 64)),
    **{name: st.sampled_from(values) for name, values in LEVERS.items() if name != "base_quantization"},
)


@given(jobs)
def test_a_form_filled_from_a_job_describes_that_job(job):
    assert job_from_form(form_from_job(job)) == job


def test_a_pasted_config_round_trips_without_a_name():
    job = TrainingJob(config={"model_type": "llama", "hidden_size": 64})
    form = form_from_job(job)
    assert form["model"] == PASTED
    assert job_from_form(form) == job


def test_a_fetched_config_keeps_its_name():
    job = TrainingJob(model="owner/name", config={"model_type": "llama"})
    assert job_from_form(form_from_job(job)) == job


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("micro_batch", -3, "micro_batch: -3 is not a whole number from 1 to"),
        ("micro_batch", 2.5, "micro_batch: 2.5 is not a whole number"),
        ("micro_batch", None, 'micro_batch: "" is not a whole number'),
        ("sequence_length", float("nan"), "sequence_length: nan is not a whole number"),
        ("sequence_length", 10**12, "sequence_length: 1000000000000 is not a whole number"),
        ("config", "{", "config: not JSON"),
        ("config", "[1]", "config: [1] is not an object"),
        ("config", "[" * 100_000, "config: "),
        ("model", "", "model: missing"),
    ],
)
def test_wrong_input_is_one_line_that_names_its_control(key, value, said):
    form = form_from_job(JOB) | {key: value}
    with pytest.raises(JobError) as raised:
        job_from_form(form)
    message = str(raised.value)
    assert message.startswith(said)
    assert "\n" not in message
    assert lever_of_error(message) == key


@pytest.mark.parametrize(
    ("message", "key"),
    [
        ("micro_batch x sequence_length: 5 x 5 tokens", "micro_batch"),
        ("lora.rank: 0 is not", "lora_rank"),
        ("sharding.data_parallel: 4 needs a mode", "sharding_data_parallel"),
        ("config.hidden_size: missing", "config"),
        ("something else", None),
        ("", None),
    ],
)
def test_an_error_points_at_its_control(message, key):
    assert lever_of_error(message) == key


def test_hidden_controls_do_not_count():
    form = form_from_job(JOB) | {"base_quantization": "nf4", "sharding_data_parallel": 8, "lora_rank": None}
    assert job_from_form(form) == JOB


def test_config_text_is_readable():
    text = form_from_job(TrainingJob(config={"a": 1, "b": [1, 2]}))["config"]
    assert json.loads(text) == {"a": 1, "b": [1, 2]}
    assert text.count("\n") > 2
