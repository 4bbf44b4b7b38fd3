"""One rank from the unsharded step: measured ranks, what the tape itself replays, and one answer everywhere."""

import random

import pytest

from trainmem.capacity import capacity_report, sum_answer
from trainmem.device import device
from trainmem.estimate import estimate
from trainmem.fit.outcome import answer, outcome
from trainmem.fit.plan import plans
from trainmem.fit.room import room
from trainmem.job import JobError, Lora, Sharding, TrainingJob
from trainmem.model import resolve
from trainmem.rank_band import rank_band
from trainmem.ranks import record_rank
from trainmem.recording import counters, read_step
from trainmem.results import published_rows
from trainmem.units import GIB, MIB
from trainmem.verdict import verdict

MEASURED = [
    row
    for row in published_rows()
    if row.job is not None and row.job.sharding.mode == "fsdp2" and row.peak_allocated_bytes
]


def _figures(job):
    recording = record_rank(job, resolve(job).architecture)
    return read_step(recording, counters(recording), 3)


@pytest.mark.parametrize("row", MEASURED, ids=[row.label for row in MEASURED])
def test_measured_ranks(row):
    found = _figures(row.job)
    assert found.peak_allocated_bytes == pytest.approx(row.peak_allocated_bytes, rel=0.002)
    told = rank_band(found.peak_allocated_bytes, found.peak_reserved_bytes, row.job)
    assert told.low_bytes <= row.peak_allocated_bytes
    # the errors that an answer states hold of every rank that was measured
    assert told.least_error <= found.peak_reserved_bytes / row.peak_reserved_bytes - 1 <= told.most_error
    assert row.peak_reserved_bytes <= told.high_bytes


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"precision": "amp_bf16", "checkpointing": "full"},
        {"precision": "bf16", "accumulation": 2, "attention": "eager"},
        {"precision": "fsdp_mp_bf16", "micro_batch": 1, "sequence_length": 128},
        {"precision": "fp32", "optimizer": "sgd_momentum", "zero_grad": "zeros"},
    ],
    ids=lambda changes: changes.get("precision", "as set"),
)
@pytest.mark.parametrize("model", ["smollm2-135m", "pythia-160m"])
@pytest.mark.parametrize("reshards", [True, False])
def test_ranks_that_the_tape_replays_itself(model, changes, reshards):
    sharding = Sharding(mode="fsdp2", data_parallel=4, reshard_after_forward=reshards)
    job = TrainingJob(
        **({"model": model, "micro_batch": 4, "sequence_length": 256, "sharding": sharding} | changes)
    )
    exact = estimate(job)
    assert not exact.over_ranks
    assert _figures(job).peak_allocated_bytes == pytest.approx(exact.peak_allocated_bytes, rel=0.02)


TRACED = [
    (
        {
            "model": "olmo2-1b", "task": "sequence_classification", "micro_batch": 32, "sequence_length": 128,
            "precision": "bf16_master_fp32_grads", "optimizer": "sgd_momentum", "checkpointing": "selective",
            "sharding": Sharding(mode="fsdp2", data_parallel=2), "device": "a100-40gb",
        },
        (10.876, 14.750),
    ),
]  # fmt: skip
"""Jobs and the GiB, allocated and reserved, that `trainmem trace` finds."""


@pytest.mark.parametrize(("job", "gib"), TRACED)
def test_a_rank_peaks_where_its_own_shares_let_it(job, gib):
    """On one device the peak of this job comes when all gradients are there, on two ranks in a block's backward."""
    found = estimate(TrainingJob(**job))
    assert found.peak_allocated_bytes / GIB == pytest.approx(gib[0], rel=0.002)
    assert found.peak_reserved_bytes / GIB == pytest.approx(gib[1], rel=0.03)
    assert sum(found.buckets_at_peak.values()) == found.peak_allocated_bytes


def test_ranks_do_not_share_the_table_that_the_library_keeps():
    """bitsandbytes makes it with the first weight that it packs; it is of no weight."""
    job = TrainingJob(
        model="llama3.2-1b",
        precision="bf16",
        lora=Lora(),
        base_quantization="nf4",
        sharding=Sharding(mode="fsdp2", data_parallel=4),
    )
    found = record_rank(job, resolve(job).architecture)
    (number,) = (number for number, op in enumerate(found.op_of) if op == "8-bit code book")
    assert not found.module_of[number]
    assert [size for size in found.events if size > 0][number] == 1024


def test_offload_takes_state_parameters_and_gradients_of_fsdp2_away():
    job = TrainingJob(model="smollm2-135m", precision="bf16_master", device="h200")
    away = estimate(job.with_(sharding=Sharding(mode="fsdp2", data_parallel=2, offload="cpu")))
    kept = {"weights", "master_weights", "gradients", "optimizer_state"}
    assert sum(size for bucket, size in away.buckets_at_peak.items() if bucket in kept) < MIB


def _random_jobs(count, seed):
    rng = random.Random(seed)
    while count:
        try:
            job = TrainingJob(
                model=rng.choice(("gpt2-124m", "qwen3-0.6b", "smollm2-135m", "pythia-160m", "opt-125m")),
                micro_batch=rng.choice((1, 4, 16)),
                sequence_length=rng.choice((128, 512)),
                precision=rng.choice(("bf16_master", "bf16_master_fp32_grads", "bf16", "amp_bf16")),
                optimizer=rng.choice(("adamw", "sgd_momentum", "adafactor", "adamw8bit")),
                checkpointing=rng.choice(("none", "full", "sqrt")),
                lora=rng.choice((None, None, Lora(rank=8))),
                sharding=_sharding(rng),
                device="h200",
            )
        except JobError:
            continue
        count -= 1
        yield job


def _sharding(rng):
    mode = rng.choice(("none", "none", "fsdp2", "ddp", "zero2", "zero3"))
    ranks = 1 if mode == "none" else rng.choice((2, 4))
    return Sharding(mode=mode, data_parallel=ranks, offload=rng.choice(("none", "none", "cpu")))


def _says(job, at):
    """What `trainmem estimate --capacity` says of a job."""
    return capacity_report(job, at.usable_bytes).answer


@pytest.mark.parametrize("job", [*_random_jobs(12, seed=7)])
def test_fit_and_its_plans_say_what_an_estimate_of_the_same_job_says(job):
    held = answer(job, "exact")
    for share in (0.6, 0.97, 1.05):
        at = room("h200", int(share * (held.peak_reserved_bytes or held.peak_allocated_bytes)) + GIB)
        found = plans(job, at)
        assert found.fits == (_says(job, at) in ("fits", "probably_fits"))
        for plan in found.plans:
            assert _says(plan.job, at) in ("fits", "probably_fits"), plan.job


def test_the_verdict_is_the_same_on_a_device():
    on = device("rtx-5090")
    for ranks in (2, 4, 8):
        job = TrainingJob(
            model="olmo2-1b",
            micro_batch=16,
            precision="bf16_master",
            lora=None,
            device="rtx-5090",
            sharding=Sharding(mode="fsdp2", data_parallel=ranks),
        )
        found = estimate(job)
        said = sum_answer(found, on.allocator_limit_bytes)
        assert verdict(job, found, on).fits is {"probably_fits": True, "unsure": None}.get(said, False)
        assert outcome(job, room("rtx-5090")).fits == (said == "probably_fits")
