"""A run by steps, some of them spared, is the run of the whole recording."""

import importlib

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trainmem.allocator import CachingAllocator, replay, stream_allocator
from trainmem.fit.methods import METHODS
from trainmem.fit.run import Ran, run
from trainmem.job import Lora, Sharding, TrainingJob
from trainmem.model import resolve
from trainmem.recording import kernel_loads
from trainmem.tape import record, record_by_step

SMALL = ("gpt2-124m", "qwen2.5-0.5b", "smollm2-135m", "pythia-160m", "opt-125m", "gemma3-270m")

jobs = st.builds(
    lambda model, method, levers: method.apply(TrainingJob(model=model, device="h200", **levers)),
    st.sampled_from(SMALL),
    st.sampled_from(METHODS),
    st.fixed_dictionaries(
        {
            "micro_batch": st.integers(1, 8),
            "sequence_length": st.integers(16, 1024),
            "accumulation": st.integers(1, 3),
            "checkpointing": st.sampled_from(["none", "full", "selective"]),
            "zero_grad": st.sampled_from(["none", "zeros"]),
        }
    ),
)


def whole(job, limit_bytes):
    """What the allocator makes of all events at once; None where they do not end, a word where the load does not."""
    recording = record(job, resolve(job).architecture)
    loaded = next(mark.event for mark in recording.marks if mark.step > 0)
    third = next(mark.event for mark in recording.marks if mark.step == 3)

    def played(events):
        return replay(
            events,
            capacity_bytes=limit_bytes,
            streams=recording.streams(),
            empty_cache_before=[event for event in recording.empty_cache_before if event < len(events)],
            kernels_loaded_before={
                event: size for event, size in kernel_loads(recording).items() if event < len(events)
            },
        )

    found = played(recording.events)
    if found.oom is not None:
        return None if found.oom.event_index >= loaded else "never loads"
    return Ran(
        retried=found.retries > played(recording.events[:loaded]).retries,
        peak_bytes=max(found.allocated[third:]),
        reserved_bytes=found.reserved[-1],
    )


@settings(max_examples=25, deadline=None)
@given(job=jobs, share=st.floats(0.8, 1.02))
def test_a_run_by_steps_is_the_run_of_all_events(job, share):
    ample = run(job, None)
    assert ample == whole(job, None)
    limit = round(ample.reserved_bytes * share)
    expected = whole(job, limit)
    # A model that cannot be loaded whole is packed from the host instead.
    assume(expected != "never loads")
    assert run(job, limit) == expected


@pytest.mark.parametrize(
    "levers",
    [
        {"precision": "bf16_master", "zero_grad": "zeros"},
        {"precision": "bf16_master_fp32_grads", "accumulation": 2},
        {"precision": "amp_fp16", "optimizer": "muon"},
        {"precision": "fsdp_mp_bf16", "sharding": Sharding(mode="fsdp2", data_parallel=2)},
        {"precision": "bf16", "lora": Lora(rank=8), "base_quantization": "int8"},
        {"precision": "bf16", "lora": Lora(rank=8), "checkpointing": "full"},
    ],
    ids=lambda levers: "-".join(map(str, levers.values()))[:40],
)
@pytest.mark.parametrize("share", [0.9, 0.97, 1.0])
def test_whatever_lives_from_step_to_step(levers, share):
    job = TrainingJob(model="smollm2-135m", micro_batch=3, sequence_length=300, device="h200", **levers)
    limit = round(run(job, None).reserved_bytes * share)
    assert run(job, limit) == whole(job, limit)


def test_a_recording_grows_by_steps():
    job = TrainingJob(model="gpt2-124m", sequence_length=64)
    architecture = resolve(job).architecture
    ends = [len(recording.events) for recording in record_by_step(job, architecture)]
    recording = record(job, architecture)
    starts = [next(mark.event for mark in recording.marks if mark.step == step) for step in (1, 2, 3)]
    assert ends == [*starts, len(recording.events)]


@pytest.mark.parametrize("make", [stream_allocator, CachingAllocator])
@pytest.mark.parametrize(("length", "share"), [(1024, 0.67), (64, 1.0)], ids=["at once", "at the end"])
def test_the_third_step_is_run_until_it_is_like_the_second(monkeypatch, length, share, make):
    job = TrainingJob(
        model="gpt2-124m",
        micro_batch=4,
        sequence_length=length,
        checkpointing="full",
        precision="bf16",
        lora=Lora(),
        device="h200",
    )
    expected, events = whole(job, None), record(job, resolve(job).architecture).events
    monkeypatch.setattr(importlib.import_module("trainmem.fit.run"), "stream_allocator", make)
    kind, fed = type(make()), []
    highest = kind.highest
    monkeypatch.setattr(
        kind,
        "highest",
        lambda self, events, *rest, **how: fed.append(len(events)) or highest(self, events, *rest, **how),
    )
    run.cache_clear()
    assert run(job, None) == expected
    assert sum(fed) == pytest.approx(share * len(events), rel=0.05)
