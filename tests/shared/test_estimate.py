"""The end of the line: jobs in, answers out, on every rung that needs no torch."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmem.allocator import AllocatorSettings
from trainmem.buckets import BUCKETS
from trainmem.device import device
from trainmem.estimate import (
    SCHEMA,
    STEADY,
    Engine,
    error_sentence,
    estimate,
    recorded,
    recording_of,
    timeline,
)
from trainmem.fit import room
from trainmem.fit.plan import plans
from trainmem.instant import describe_instant
from trainmem.job import Checkpointing, JobError, Lora, Sharding, TrainingJob
from trainmem.model import catalogue
from trainmem.model.families import architecture_of
from trainmem.recording import PHASES, read_step
from trainmem.verdict import verdict

GIB = 1 << 30
_SIZES = {
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "intermediate_size": 1024,
    "vocab_size": 32000,
}
FAMILIES = ("gpt2-124m", "qwen2.5-0.5b", "smollm2-135m")


def lesson(**changes: object) -> TrainingJob:
    values: dict[str, object] = {
        "model": "gpt2-774m",
        "micro_batch": 8,
        "sequence_length": 1024,
        "device": "h200",
    }
    return TrainingJob.from_json({**values, **changes})


@pytest.mark.parametrize(
    ("changes", "gib"),
    [
        ({}, 44.44),
        ({"checkpointing": "full"}, 15.57),
        ({"optimizer": "adamw8bit"}, 40.19),
        ({"checkpointing": "full", "optimizer": "adamw8bit"}, 11.31),
        ({"micro_batch": 2, "accumulation": 4}, 21.74),
    ],
)
def test_the_lessons_table(changes: dict[str, object], gib: float) -> None:
    assert estimate(lesson(**changes)).peak_allocated_bytes / GIB == pytest.approx(gib, abs=0.02)


def test_the_first_step_has_no_optimizer_state() -> None:
    answer = estimate(lesson())
    assert (answer.peak_allocated_bytes - answer.first_step_peak_bytes) / GIB == pytest.approx(5.80, abs=0.02)


def test_forgetting_set_to_none_costs_one_gradient_copy() -> None:
    kept = estimate(lesson(zero_grad="zeros")).peak_allocated_bytes
    assert (kept - estimate(lesson()).peak_allocated_bytes) / GIB == pytest.approx(2.89, abs=0.02)


def test_a_7b_under_the_classic_recipe_does_not_fit_on_the_spark() -> None:
    job = TrainingJob(model="llama2-7b", sequence_length=2048, checkpointing="full", device="h200")
    answer = estimate(job)
    assert answer.peak_allocated_bytes / GIB == pytest.approx(125.6, abs=0.1)
    assert answer.peak_phase == "optimizer"
    assert "square roots" in answer.peak_instant


def test_the_answer_is_the_contracts_object() -> None:
    data = json.loads(json.dumps(estimate(lesson()).to_json()))
    assert data["schema"] == SCHEMA
    assert list(data["buckets_at_peak"]) == list(BUCKETS)
    assert set(data["phases"]) == {
        "start_bytes", "after_forward_bytes", "peak_forward_bytes", "after_backward_bytes", "peak_backward_bytes",
        "after_optimizer_bytes", "peak_optimizer_bytes", "after_zero_grad_bytes",
    }  # fmt: skip
    assert data["engine"] == "tape"
    assert TrainingJob.from_json(data["job"]) == lesson()


def test_fast_leaves_the_allocator_out() -> None:
    fast, exact = estimate(lesson(), detail="fast"), estimate(lesson())
    assert fast.peak_reserved_bytes is None
    assert exact.peak_reserved_bytes is not None
    assert exact.peak_reserved_bytes >= exact.peak_allocated_bytes >= fast.peak_allocated_bytes
    assert fast.peak_allocated_bytes == pytest.approx(exact.peak_allocated_bytes, rel=0.01)


def test_expandable_segments_lower_reserved_not_allocated() -> None:
    job = TrainingJob(
        model="llama3.2-1b", micro_batch=4, sequence_length=2048, checkpointing="full", device="h200"
    )
    plain = estimate(job)
    expandable = estimate(job, settings=AllocatorSettings.parse("expandable_segments:True"))
    assert expandable.peak_reserved_bytes < plain.peak_reserved_bytes  # type: ignore[operator]


def test_an_unknown_family_falls_back_to_the_whiteboard_and_says_so() -> None:
    config = {
        "model_type": "starcoder9",
        "hidden_size": 1024,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "vocab_size": 32000,
    }
    answer = estimate(TrainingJob(config=config))
    assert answer.engine == "whiteboard"
    assert answer.typical_error > 0.05
    told = " ".join(answer.warnings)
    assert "starcoder9" in told
    assert "its MLP is taken as 4 x the hidden size wide" in told
    assert "trainmem trace" in told


def test_a_config_without_the_shared_keys_is_refused_with_the_command_that_traces_it() -> None:
    with pytest.raises(JobError, match="trainmem trace"):
        estimate(TrainingJob(config={"model_type": "mamba", "state_size": 64}))


def test_what_the_tape_does_not_shard_is_put_together_from_the_unsharded_step() -> None:
    answer = estimate(TrainingJob(model="llama3.1-8b", sharding=Sharding(mode="zero2", data_parallel=8)))
    assert answer.over_ranks
    assert answer.is_sum
    assert any("sharding" in warning for warning in answer.warnings)


@pytest.mark.parametrize(
    ("ranks", "reshards", "checkpointing", "gib"),
    [
        (8, False, "none", 16.66),
        (8, True, "none", 14.96),
        (64, True, "none", 13.45),
        (64, True, "full", 7.07),
    ],
)
def test_fsdp2_peaks_are_those_of_a_real_rank(
    ranks: int, reshards: bool, checkpointing: Checkpointing, gib: float
) -> None:
    """Llama-3.2-1B under torch 2.11's FSDP2 on an H200, collectives over a fake process group."""
    job = TrainingJob(
        model="llama3.2-1b",
        micro_batch=2,
        sequence_length=2048,
        precision="fsdp_mp_bf16",
        checkpointing=checkpointing,
        sharding=Sharding(mode="fsdp2", data_parallel=ranks, reshard_after_forward=reshards),
    )
    exact, fast = estimate(job), estimate(job, detail="fast")
    assert exact.engine == fast.engine == "tape"
    assert round(exact.peak_allocated_bytes / 2**30, 2) == gib
    assert fast.peak_allocated_bytes == pytest.approx(exact.peak_allocated_bytes, rel=1e-3)


def test_every_micro_batch_after_the_third_is_like_it() -> None:
    few, many = (estimate(lesson(model="gpt2-124m", accumulation=count)) for count in (4, 1 << 20))
    assert many.peak_allocated_bytes == few.peak_allocated_bytes
    assert many.peak_reserved_bytes == few.peak_reserved_bytes


JOBS = st.builds(
    lambda model, batch, length, precision, optimizer, attention, checkpointing, zero, accumulation, lora, loss: (
        TrainingJob(
            model=model,
            micro_batch=batch,
            sequence_length=length,
            precision=precision,
            optimizer=optimizer,
            attention=attention,
            checkpointing=checkpointing,
            zero_grad=zero,
            accumulation=accumulation,
            lora=Lora(rank=8) if lora else None,
            loss=loss,
            device="h200",
        )
    ),
    st.sampled_from(FAMILIES),
    st.integers(1, 4),
    st.sampled_from((64, 200, 512)),
    st.sampled_from(("fp32", "amp_bf16", "amp_fp16", "bf16", "bf16_kahan", "bf16_stochastic", "bf16_master")),
    st.sampled_from(
        ("adamw", "adamw_fused", "adamw_loop", "adamw8bit", "sgd", "sgd_momentum", "adafactor", "muon")
    ),
    st.sampled_from(("sdpa", "eager")),
    st.sampled_from(("none", "full", "selective", "sqrt")),
    st.sampled_from(("none", "zeros")),
    st.integers(1, 2),
    st.booleans(),
    st.sampled_from(("standard", "liger_fused")),
)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(JOBS)
def test_every_answer_adds_up(job: TrainingJob) -> None:
    exact, fast = estimate(job), estimate(job, detail="fast")
    for answer in (exact, fast):
        assert answer.engine == "tape"
        assert sum(answer.buckets_at_peak.values()) == answer.peak_allocated_bytes
        assert min(answer.buckets_at_peak.values()) >= 0
        phases = answer.phases
        tops = [phases[f"peak_{name}_bytes"] for name in ("forward", "backward", "optimizer")]
        assert max(tops) == answer.peak_allocated_bytes
        assert answer.peak_phase in PHASES
    # small tensors sit in blocks of up to 1 MiB more than they asked for
    assert fast.peak_allocated_bytes == pytest.approx(exact.peak_allocated_bytes, rel=0.06)
    assert exact.peak_reserved_bytes >= exact.peak_allocated_bytes  # type: ignore[operator]


@settings(max_examples=25, deadline=None, derandomize=True)
@given(JOBS, st.sampled_from(("micro_batch", "sequence_length")))
def test_more_tokens_never_need_less(job: TrainingJob, field: str) -> None:
    more = job.with_(**{field: getattr(job, field) * 2})
    assert (
        estimate(more, detail="fast").peak_allocated_bytes
        >= estimate(job, detail="fast").peak_allocated_bytes
    )


@pytest.mark.parametrize("key", ["num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size"])
def test_a_larger_model_never_needs_less(key: str) -> None:
    config = {
        "model_type": "llama", "vocab_size": 4096, "hidden_size": 512, "intermediate_size": 1024,
        "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 4,
    }  # fmt: skip
    small = estimate(TrainingJob(config=config, sequence_length=256))
    large = estimate(TrainingJob(config={**config, key: config[key] * 2}, sequence_length=256))
    assert large.peak_allocated_bytes > small.peak_allocated_bytes


def test_qlora_needs_less_than_lora_and_lora_less_than_full() -> None:
    full = TrainingJob(model="llama3.1-8b", sequence_length=2048, precision="bf16", device="h200")
    lora = full.with_(lora=Lora())
    qlora = lora.with_(base_quantization="nf4")
    sizes = [estimate(job).peak_allocated_bytes for job in (qlora, lora, full)]
    assert sizes == sorted(sizes)


def test_a_timeline_holds_the_peak_and_sums_everywhere() -> None:
    answer, step = estimate(lesson()), timeline(lesson())
    assert max(i.total_bytes for i in step.instants) == answer.peak_allocated_bytes
    assert len(step.curve) <= 260
    assert max(sum(p.buckets.values()) for p in step.curve) == answer.peak_allocated_bytes
    assert [p.x for p in step.curve] == sorted(p.x for p in step.curve)
    assert step.instants[0].name == "start"
    first = timeline(lesson(), first_step=True)
    assert max(i.total_bytes for i in first.instants) == answer.first_step_peak_bytes


def test_instants_are_named() -> None:
    assert describe_instant("backward", "loss: nll_loss backward", "").startswith("start of backward")
    assert describe_instant("backward", "layers.2.mlp.act: mul backward", "layers.30").startswith(
        "backward of block 30"
    )


_TINY: dict[str, dict[str, object]] = {
    "bert": {"model_type": "bert", "intermediate_size": 384, "vocab_size": 1024},
    "llama": {"model_type": "llama", "intermediate_size": 192, "vocab_size": 256, "num_key_value_heads": 2},
}


@pytest.mark.parametrize(
    ("family", "levers"),
    [
        ("bert", {"precision": "fp32", "optimizer": "adafactor", "base_quantization": "nf4"}),
        ("llama", {"precision": "bf16", "optimizer": "adamw", "base_quantization": "int8"}),
    ],
)
def test_all_that_fast_leaves_out_is_the_unsplit_rest_of_blocks(
    family: str, levers: dict[str, object]
) -> None:
    """Adapters of rank 4,096 on a tiny model are tensors of 1 to 3 MiB, which find blocks up to 1 MiB too large."""
    shape = {"hidden_size": 96, "num_hidden_layers": 6, "num_attention_heads": 4}
    job = TrainingJob(
        config=_TINY[family] | shape,
        task="sequence_classification" if family == "bert" else "causal_lm",
        sequence_length=64,
        lora=Lora(rank=4096),
        device="h200",
    ).with_(**levers)
    recording, result = recorded(job)
    exact = read_step(recording, result, STEADY)
    sizes: list[int] = []
    rest = 0
    for event in recording.events[: exact.peak_event + 1]:
        if event > 0:
            sizes.append(-(-event // 512) * 512)
        number = len(sizes) - 1 if event > 0 else ~event
        rest += (1 if event > 0 else -1) * (result.block_bytes[number] - sizes[number])
    assert rest > 0.02 * exact.peak_allocated_bytes
    assert estimate(job, detail="fast").peak_allocated_bytes + rest == exact.peak_allocated_bytes


@pytest.mark.parametrize("engine", ["tape", "trace"])
def test_a_step_whose_cached_memory_alone_is_too_much_fits_barely(engine: Engine) -> None:
    """A trace's recording is asked again on the device itself, as the tape's is."""
    job = TrainingJob(model="llama3.2-1b", micro_batch=4, checkpointing="full", precision="bf16_master")
    recording = recording_of(job)
    answer = replace(estimate(job), engine=engine)
    assert answer.peak_reserved_bytes is not None
    between = (answer.peak_allocated_bytes + 3 * answer.peak_reserved_bytes) // 4
    known = device("h200")
    outside = known.usable_bytes - known.allocator_limit_bytes
    tight = replace(known, visible_bytes=between + outside, os_share_bytes=0)
    found = verdict(job, answer, tight, recording=recording)
    assert (found.fits, found.fits_expandable, "barely" in found.sentence) == (True, False, True)


@pytest.mark.parametrize(
    ("job", "fits", "fits_expandable"),
    [
        (
            TrainingJob(
                model="gpt2-124m", device="l4", micro_batch=32, sequence_length=1000, checkpointing="sqrt"
            ),
            0,
            1,
        ),
        (TrainingJob(model="gpt2-124m", device="l4", micro_batch=8), 1, 0),
        (TrainingJob(model="gpt2-124m", device="t4", micro_batch=16), 0, 0),
    ],
)
def test_fitting_means_the_same_to_estimate_and_to_fit(
    job: TrainingJob, fits: bool, fits_expandable: bool
) -> None:
    """As it is set: what only expandable segments would save does not fit."""
    known = device(job.device)
    found = verdict(job, estimate(job), known, try_levers=False).to_json(known)
    planned = plans(job, room(job.device)).to_json()
    keys = ("fits", "fits_with_expandable_segments")
    assert [found[key] for key in keys] == [planned[key] for key in keys] == [fits, fits_expandable]
    assert (found["headroom_bytes"] >= 0) == fits


@pytest.mark.parametrize(
    ("config", "given"),
    [
        (
            {"model_type": "llama"},
            "gives 0 of the 5 sizes that decide this model, and 5 are its class's defaults",
        ),
        ({"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 4}, "gives 2 of the 5 sizes"),
        ({"model_type": "mistral", **_SIZES}, "gives 5 of the 6 sizes"),  # its class has 8 key/value heads
    ],
)
def test_the_error_of_a_model_that_the_config_does_not_give_is_not_its_own(
    config: dict[str, object], given: str
) -> None:
    job = TrainingJob(config=config)
    said = error_sentence(job, 9e-5)
    assert given in said
    assert "under 0.01%, holds for the model that the defaults make, which need not be yours" in said


@pytest.mark.parametrize(
    "job",
    [TrainingJob(model="gpt2-774m"), TrainingJob(config={"model_type": "llama", **_SIZES})],
)
def test_the_error_of_a_model_that_is_given_is_its_own(job: TrainingJob) -> None:
    assert error_sentence(job, 0.0125) == "typical error on measured steps like this one: 1.25%"


def test_every_model_of_the_catalogue_gives_every_size() -> None:
    for entry in catalogue.entries():
        found = architecture_of(entry.config, entry.task)
        assert found.sizes
        assert not found.sizes_by_default, entry.name
