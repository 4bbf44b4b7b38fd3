"""Does it fit: bounds that hold, and the same answer that measured machines gave."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmem.allocator import replay
from trainmem.device import device, devices
from trainmem.estimate import estimate, recording_of
from trainmem.fit.bounds import least_bytes
from trainmem.fit.methods import METHODS
from trainmem.fit.outcome import Outcome, answer, can_fit, outcome
from trainmem.fit.room import Room, room
from trainmem.job import JobError, Lora, Sharding, TrainingJob
from trainmem.model import FAMILIES, catalogue
from trainmem.recording import kernel_loads
from trainmem.results import published_rows
from trainmem.results.plausible import device_of_gpu
from trainmem.units import GIB

SMALL = ("gpt2-124m", "qwen2.5-0.5b", "smollm2-135m", "pythia-160m", "opt-125m", "qwen3-0.6b")
H200 = device("h200")


def of_bytes(limit_bytes: int) -> Room:
    at = Room(device=H200, usable_bytes=0)
    return Room(device=H200, usable_bytes=limit_bytes + at.context_bytes, is_budget=True)


jobs = st.builds(
    lambda model, batch, length, checkpointing, method: method.apply(
        TrainingJob(
            model=model,
            micro_batch=batch,
            sequence_length=length,
            checkpointing=checkpointing,
            device="h200",
        )
    ),
    st.sampled_from(SMALL),
    st.integers(1, 8),
    st.integers(16, 1024),
    st.sampled_from(["none", "full"]),
    st.sampled_from(METHODS),
)


@settings(max_examples=40, deadline=None)
@given(job=jobs)
def test_the_bounds_are_below_the_exact_peak(job):
    fast, exact = answer(job, "fast"), answer(job, "exact")
    assert least_bytes(job) <= fast.peak_allocated_bytes <= exact.peak_allocated_bytes


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        # a head that is not tied comes after the blocks, so that no row vector of the embedding is alive beside it
        ("llama3.1-8b", {"optimizer": "adafactor", "precision": "bf16"}),
        # a block's last vector is alive in the next block's experts, but once and not once for each block
        ("mixtral-8x7b", {"optimizer": "adafactor", "precision": "fp32"}),
        # autocast's 16-bit context makes the output projection cast its bias, though no other packed layer does
        (
            "opt-30b",
            {
                "optimizer": "muon",
                "precision": "amp_fp16",
                "attention": "eager",
                "checkpointing": "sqrt",
                "lora": Lora(rank=1),
                "base_quantization": "int8",
                "device": "t4",
            },
        ),
    ],
    ids=["adafactor", "adafactor over experts", "int8"],
)
def test_the_fast_peak_is_not_above_the_exact_one_where_neighbours_matter(model, changes):
    job = TrainingJob(**({"model": model, "micro_batch": 1, "sequence_length": 8} | changes))
    fast, exact = answer(job, "fast"), answer(job, "exact")
    assert 0 <= exact.peak_allocated_bytes - fast.peak_allocated_bytes <= 512


ONE_OF_EACH_FAMILY = sorted(
    {
        entry.config["model_type"]: entry.name
        for entry in sorted(
            catalogue.entries(), key=lambda entry: entry.architecture().parameter_count, reverse=True
        )
        if entry.task == "causal_lm"
    }.values()
)


@pytest.mark.parametrize("model", ONE_OF_EACH_FAMILY)
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_no_family_takes_less_than_the_bounds(model, checkpointing):
    for method in METHODS:
        for device_name, levers in (
            ("spark", {}),
            ("h200", {"sequence_length": 300}),
            ("t4", {"attention": "eager"}),
            ("rtx-4090", {"loss": "liger_fused", "accumulation": 2}),
            ("h200", {"micro_batch": 64, "sequence_length": 3}),
        ):
            like = TrainingJob(
                model=model,
                micro_batch=8,
                sequence_length=1024,
                checkpointing=checkpointing,
                device=device_name,
            )
            job = method.apply(like.with_(**levers))
            assert least_bytes(job) <= answer(job, "fast").peak_allocated_bytes, job


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.key)
def test_without_checkpoints_the_bound_is_most_of_a_large_batch(method):
    job = method.apply(TrainingJob(model="llama2-7b", micro_batch=8, sequence_length=2048, device="h200"))
    assert least_bytes(job) > 0.9 * answer(job, "fast").peak_allocated_bytes


@settings(max_examples=25, deadline=None)
@given(job=jobs, share=st.floats(0.9, 1.4), more=st.floats(1.0, 1.3))
def test_more_memory_never_fits_less_where_nothing_is_given_back(job, share, more):
    # Idle segments that are given back, be it while the model is loaded, leave fewer rests: a job can fit into a little
    # less than it dies in.
    limit = round(answer(job, "fast").peak_allocated_bytes * share)
    recording = recording_of(job)
    found = replay(
        recording.events,
        capacity_bytes=of_bytes(limit).limit_bytes,
        streams=recording.streams(),
        empty_cache_before=recording.empty_cache_before,
        kernels_loaded_before=kernel_loads(recording),
    )
    if found.oom is None and not found.retries:
        assert outcome(job, of_bytes(limit)).fits
        assert outcome(job, of_bytes(round(limit * more))).fits


@settings(max_examples=15, deadline=None)
@given(job=jobs)
def test_reserved_memory_is_enough_and_allocated_memory_is_needed(job):
    exact = answer(job, "exact")
    assert outcome(job, of_bytes(exact.peak_reserved_bytes)).fits
    assert not outcome(job, of_bytes(exact.peak_allocated_bytes - 1)).fits
    ample = outcome(job, of_bytes(400 * GIB))
    assert not ample.tight
    assert ample.peak_bytes == exact.peak_allocated_bytes
    assert ample.reserved_bytes == exact.peak_reserved_bytes


def test_tight_is_what_runs_only_by_giving_memory_back():
    job = TrainingJob(
        model="gpt2-355m", micro_batch=1, sequence_length=1024, checkpointing="full", device="h200"
    )
    exact = answer(job, "exact")
    assert outcome(job, of_bytes(exact.peak_reserved_bytes - (64 << 20))) == Outcome(
        fits=True, tight=True, basis="allocator"
    )


def test_the_fast_answer_only_refuses_what_does_not_fit():
    job = TrainingJob(model="llama3.2-1b", micro_batch=4, sequence_length=2048, checkpointing="full")
    peak = answer(job, "fast").peak_allocated_bytes
    assert not can_fit(job, of_bytes(peak - 1))
    assert outcome(job, of_bytes(peak), "fast").fits
    # 27.3 GiB allocated, but the allocator holds 34.9: see the measured row of this job.
    assert not outcome(job, of_bytes(peak)).fits


def test_accumulating_more_than_twice_asks_no_more():
    job = TrainingJob(model="gpt2-124m", micro_batch=2, sequence_length=256, device="h200")
    twice, often = (answer(job.with_(accumulation=times), "exact") for times in (2, 64))
    assert often.peak_allocated_bytes == twice.peak_allocated_bytes
    assert often.job.accumulation == 64


def test_a_packed_base_may_be_larger_than_the_device_before_it_is_packed():
    job = TrainingJob(
        model="llama3.1-70b",
        micro_batch=1,
        sequence_length=512,
        checkpointing="full",
        precision="bf16",
        lora=Lora(),
        base_quantization="nf4",
        device="h200",
    )
    found = outcome(job, of_bytes(48 * GIB))
    assert found.fits
    assert found.peak_bytes == pytest.approx(answer(job, "exact").peak_allocated_bytes, rel=0.005)


@pytest.mark.parametrize("mode", ["zero1", "zero2", "zero3", "fsdp2"])
def test_a_rank_holds_less_the_more_ranks_there_are(mode):
    job = TrainingJob(model="llama2-7b", micro_batch=1, sequence_length=1024, device="h100-80gb")
    peaks = [
        answer(job.with_(sharding=Sharding(mode=mode, data_parallel=ranks)), "exact").peak_allocated_bytes
        for ranks in (2, 4, 8, 64)
    ]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[0] < answer(job, "fast").peak_allocated_bytes
    for ranks in (2, 64):
        sharded = job.with_(sharding=Sharding(mode=mode, data_parallel=ranks))
        assert least_bytes(sharded) <= answer(sharded, "fast").peak_allocated_bytes
        found = answer(sharded, "fast")
        assert sum(found.buckets_at_peak.values()) == found.peak_allocated_bytes


def test_zeros_published_example_is_in_a_ranks_state():
    # ZeRO, figure 1: 7.5B on 64 GPUs takes 1.9 GB of state at stage 3.
    job = TrainingJob(
        model="llama2-7b",
        sequence_length=1,
        precision="bf16_master",
        checkpointing="full",
        sharding=Sharding(mode="zero3", data_parallel=64),
        device="h200",
    )
    assert least_bytes(job.with_(optimizer="adamw_fused")) == pytest.approx(18 * 6.738e9 / 64, rel=0.01)


def test_offloading_takes_the_state_away():
    job = TrainingJob(model="llama2-7b", precision="bf16_master", checkpointing="full", device="rtx-4090")
    away = job.with_(sharding=Sharding(mode="zero2", offload="cpu"))
    assert answer(away, "fast").buckets_at_peak["optimizer_state"] == 0
    assert answer(away, "fast").peak_allocated_bytes < 0.4 * answer(job, "fast").peak_allocated_bytes


def test_paged_state_comes_out_of_the_sparks_one_pool():
    job = TrainingJob(model="llama2-7b", optimizer="paged_adamw8bit", checkpointing="full")
    peak = answer(job, "fast").peak_allocated_bytes
    alone = Room(device=device("h100-80gb"), usable_bytes=peak + GIB)
    shared = Room(device=device("spark"), usable_bytes=peak + GIB)
    assert can_fit(job.with_(device="h100-80gb"), alone)
    assert not can_fit(job, shared)


def measured_steps():
    for row in published_rows():
        known = row.job is not None and (row.job.config or {}).get("model_type") in FAMILIES
        if known and row.kind == "step" and row.outcome in ("ok", "oom"):
            machine = device_of_gpu(str(row.environment.get("gpu")))
            total = row.environment.get("capacity_bytes") or row.environment.get("gpu_memory_bytes")
            if machine is not None and total:
                capped = row.environment.get("capacity_bytes") is not None
                outside = 0 if capped else (machine.context_bytes or 0)
                yield row, of_bytes(total - outside)


@pytest.mark.parametrize(
    ("row", "at"),
    list(measured_steps()),
    ids=lambda value: getattr(value, "label", None) or getattr(value, "id", "at"),
)
def test_what_ran_is_not_refused_and_what_ran_out_is(row, at):
    if estimate(row.job, "tape", "fast").engine != "tape":
        pytest.skip("the tape does not know this job")
    if row.outcome == "ok":
        assert can_fit(row.job, at)
    else:
        assert not outcome(row.job, at).fits


@pytest.mark.parametrize(
    "row", [row for row in published_rows() if row.suite == "limits"], ids=lambda row: row.label
)
def test_every_claim_of_the_limits_suite_agrees_with_the_machine(row):
    claim = outcome(row.job, of_bytes(row.environment["capacity_bytes"])).fits
    if row.outcome == "skipped":
        assert not claim
    else:
        assert claim == (row.outcome == "ok")


def test_a_room_is_the_devices_or_a_budget():
    spark = room("spark")
    assert spark.limit_bytes == spark.device.allocator_limit_bytes
    assert room("spark", "118GiB").usable_bytes == 118 * GIB
    assert room("spark", "").usable_bytes == spark.usable_bytes
    assert "118 GiB of" in room("spark", "118GiB").name
    for found in devices():
        if found.cuda:
            assert room(found.name).limit_bytes == found.allocator_limit_bytes


@pytest.mark.parametrize(
    ("name", "budget", "said"),
    [
        ("m3-ultra", None, "device: m3-ultra has no CUDA"),
        ("nope", None, "device: "),
        ("spark", "much", "budget: 'much' is not a size"),
        ("spark", "1MiB", "budget: 1MiB is below the CUDA context"),
    ],
)
def test_a_wrong_room_is_one_line(name, budget, said):
    with pytest.raises((JobError, ValueError)) as error:
        room(name, budget)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
