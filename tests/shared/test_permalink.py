"""Links round-trip, stay short, and refuse what they did not write."""

from __future__ import annotations

import base64
import contextlib
import json
import random
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmem.job import LEVERS, JobError, Lora, Sharding, TrainingJob
from trainmem.permalink import decode, encode

CONFIG = {"model_type": "gpt2", "n_embd": 1280, "n_layer": 36, "note": "ünï & code?", "deep": {"a": [1, 2.5]}}


def test_a_plain_job_is_readable():
    job = TrainingJob(model="gpt2-774m", micro_batch=8, precision="bf16", lora=Lora(rank=8))
    assert encode(job) == "model=gpt2-774m&micro_batch=8&precision=bf16&lora=8"
    assert encode(TrainingJob(model="gpt2-774m")) == "model=gpt2-774m"


@st.composite
def jobs(draw):
    lora = draw(st.sampled_from([None, Lora(), Lora(rank=8, targets=("q_proj", "v_proj"))]))
    mode = draw(st.sampled_from(["none", "ddp", "zero3", "fsdp2"]))
    levers = {name: draw(st.sampled_from(allowed)) for name, allowed in LEVERS.items()}
    if lora is None:
        levers["base_quantization"] = "none"
    return TrainingJob(
        model=draw(st.sampled_from(["gpt2-774m", "meta-llama/Llama-3.2-1B", "a b&c=d"])),
        config=draw(st.sampled_from([None, CONFIG])),
        micro_batch=draw(st.integers(1, 1000)),
        sequence_length=draw(st.integers(1, 100_000)),
        accumulation=draw(st.integers(1, 64)),
        lora=lora,
        sharding=Sharding(
            mode=mode,
            data_parallel=1 if mode == "none" else draw(st.integers(1, 64)),
            tensor_parallel=draw(st.sampled_from([1, 4])),
            reshard_after_forward=draw(st.booleans()),
            offload=draw(st.sampled_from(["none", "cpu"])),
        ),
        device=draw(st.sampled_from(["spark", "h200"])),
        **levers,
    )


@settings(max_examples=200, deadline=None)
@given(jobs())
def test_round_trip(job):
    assert decode(encode(job)) == job
    assert decode("?" + encode(job)) == job


@pytest.mark.parametrize(
    ("query", "line"),
    [
        ("", "model: missing"),
        ("micro_batch=8", "model: missing"),
        ("model=gpt2-124m&micro_batch=-1", "micro_batch: "),
        ("model=gpt2-124m&micro_batch=", "micro_batch: "),
        ("model=gpt2-124m&micro_batch=1&micro_batch=2", "micro_batch: given twice"),
        ("model=gpt2-124m&batch=1", "batch: not part of a link"),
        ("model=gpt2-124m&precision=fp8", "precision: "),
        ("model=gpt2-124m&lora=x", "lora.rank: "),
        ("model=gpt2-124m&lora=8:", "lora.targets: "),
        ("model=gpt2-124m&sharding=zero9", "sharding.mode: "),
        ("model=gpt2-124m&data_parallel=8", "sharding.data_parallel: "),
        ("model=gpt2-124m&sharding=fsdp2&reshard_after_forward=maybe", "sharding.reshard_after_forward: "),
        ("config=%%%", "config: "),
        ("config=AAAA", "config: "),
        ("config=" + "é" * 8, "config: "),
        ("model=%ff", "link: "),
        ("&".join(f"model{i}=1" for i in range(100)), "link: "),
        ("model=" + "x" * 100_000, "link: "),
    ],
)
def test_malformed_links_are_one_clear_line(query, line):
    with pytest.raises(JobError) as caught:
        decode(query)
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


def packed(config):
    text = json.dumps(config).encode()
    return base64.urlsafe_b64encode(zlib.compress(text, 9)).decode().rstrip("=")


def test_a_packed_config_cannot_unpack_into_a_flood():
    flood = f"config={packed({'a': '0' * 10_000_000})}"
    assert len(flood) < 60_000
    with pytest.raises(JobError, match="config: not a JSON object of at most 262,144 bytes"):
        decode(flood)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60))
def test_any_text_is_a_job_or_a_job_error(text):
    for query in (text, "config=" + text, "model=gpt2-124m&lora=" + text):
        with contextlib.suppress(JobError):
            decode(query)


def test_what_would_not_decode_is_not_encoded():
    largest = {"a": "0" * (256 * 1024 - len('{"a":""}'))}
    assert decode(encode(TrainingJob(config=largest))) == TrainingJob(config=largest)
    with pytest.raises(JobError, match=r"config: 262,145 bytes; at most 262,144 fit in a link"):
        encode(TrainingJob(config={"a": largest["a"] + "0"}))
    noise = random.Random(0).randbytes(100_000).hex()
    with pytest.raises(JobError, match="link: this job makes"):
        encode(TrainingJob(config={"a": noise}))


@pytest.mark.parametrize(
    ("field", "job"),
    [
        ("model", {"model": "gpt\ud800"}),
        ("config.note", {"config": {"note": "\udfff"}}),
        ("config", {"config": {"\ud800": 1}}),
        ("config.deep", {"config": {"deep": [{"a": "\ud800"}]}}),
        ("device", {"model": "gpt2-124m", "device": "\ud800"}),
        ("lora.targets", {"model": "gpt2-124m", "lora": {"targets": ["\ud800"]}}),
    ],
)
def test_half_a_surrogate_pair_is_no_text_and_never_reaches_a_link(field, job):
    with pytest.raises(JobError) as caught:
        encode(TrainingJob.from_json(job))
    assert str(caught.value).startswith(f"{field}: ")
    str(caught.value).encode("utf-8")
