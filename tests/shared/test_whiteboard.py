"""The whiteboard's sums against published figures and against themselves."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmem.buckets import BUCKETS
from trainmem.job import LEVERS, WEIGHT_DTYPE_BYTES, JobError, Lora, Sharding, TrainingJob
from trainmem.model.architecture import Architecture, Parameter
from trainmem.model.catalogue import entries, find
from trainmem.units import GB, GIB, MIB
from trainmem.whiteboard import Whiteboard, bytes_per_parameter, lesson_limits, recipe_sum, whiteboard
from trainmem.whiteboard.activations import layer_coefficient, saved_by_block, scores_overtake_at_tokens
from trainmem.whiteboard.adapters import frozen_base, lora_parameters, trainable_shapes
from trainmem.whiteboard.checkpointing import alive_layers
from trainmem.whiteboard.logits import liger_chunk_rows
from trainmem.whiteboard.optimizer_state import optimizer_state
from trainmem.whiteboard.sharding import zero_bytes_per_parameter
from trainmem.whiteboard.states import RECIPES


def board(model: str = "gpt2-774m", **levers: object) -> Whiteboard:
    job = TrainingJob.from_json({"model": model, **levers})
    return whiteboard(job, find(model).architecture(job.task))


BASELINE = {"micro_batch": 8, "sequence_length": 1024}


@pytest.mark.parametrize(
    ("precision", "optimizer", "expected"),
    [
        ("fp32", "adamw", 16),
        ("bf16_master", "adamw", 16),
        ("amp_bf16", "adamw", 18),
        ("amp_fp16", "adamw_fused", 18),
        ("bf16_master_fp32_grads", "adamw", 18),
        ("bf16", "adamw", 8),
        ("bf16_kahan", "adamw", 10),
        ("bf16_stochastic", "adamw", 8),
        ("fsdp_mp_bf16", "adamw", 16),
        ("fp32", "sgd", 8),
        ("fp32", "sgd_momentum", 12),
        ("amp_bf16", "adamw8bit", 4 + 4 + 2 + 2.03125),
        ("bf16", "lion8bit", 2 + 2 + 1.015625),
        ("bf16", "adafactor", 4),
    ],
)
def test_bytes_per_parameter(precision, optimizer, expected):
    assert bytes_per_parameter(precision, optimizer) == expected


def test_the_classic_sum_is_said_in_parts():
    assert recipe_sum("bf16_master") == (
        ("weights", 2),
        ("master weights", 4),
        ("gradients", 2),
        ("optimizer state", 8),
    )


def test_baseline_of_the_lesson_is_about_29_gib():
    result = board(**BASELINE)
    assert result.peak_bytes / GIB == pytest.approx(28.76, abs=0.01)
    assert result.buckets["activations"] == 36 * 34 * 1024 * 8 * 1280
    assert result.buckets["logits"] == 10 * 8 * 1024 * 50257
    weights = result.terms[0]
    assert (weights.equation, weights.substituted) == ("P × 4 B", "774,030,080 × 4 B = 2.88 GiB")


def test_lesson_table_checkpointing_is_about_18_and_eight_bit_state_saves_4_3():
    assert board(**BASELINE, checkpointing="full").peak_bytes / GIB == pytest.approx(17.85, abs=0.01)
    saved = board(**BASELINE).peak_bytes - board(**BASELINE, optimizer="adamw8bit").peak_bytes
    assert saved / GIB == pytest.approx(4.30, abs=0.01)


def test_eager_scores_of_the_lesson_are_48_gb():
    levers = {"micro_batch": 4, "sequence_length": 4096}
    scores = (
        board("gpt2-124m", **levers, attention="eager").peak_bytes - board("gpt2-124m", **levers).peak_bytes
    )
    assert scores / GB == pytest.approx(48.3, abs=0.05)


@pytest.mark.parametrize(
    ("mode", "gigabytes"), [("ddp", 120), ("zero1", 31.4), ("zero2", 16.6), ("zero3", 1.9)]
)
def test_zero_paper_7_5b_on_64_gpus(mode, gigabytes):
    assert 7.5 * zero_bytes_per_parameter(mode, 1 if mode == "none" else 64) == pytest.approx(
        gigabytes, abs=0.05
    )


@pytest.mark.parametrize(
    ("mode", "gigabytes"), [("none", 120), ("zero1", 31.4), ("zero2", 16.6), ("zero3", 1.9)]
)
def test_zero_paper_through_the_board(mode, gigabytes):
    one_block = (Parameter("mlp.weight", (75_000, 100_000), "linear"),)
    architecture = Architecture(
        family="none",
        hidden_size=1024,
        heads=8,
        kv_heads=8,
        head_dim=128,
        intermediate_size=4096,
        vocab_size=1,
        max_positions=None,
        tied=False,
        layer_kinds=("block",),
        embeddings=(),
        blocks={"block": one_block},
        final=(),
        head=(),
    )
    sharding = Sharding(mode=mode, data_parallel=1 if mode == "none" else 64)
    result = whiteboard(TrainingJob(model="paper", precision="bf16_master", sharding=sharding), architecture)
    state = sum(result.buckets[b] for b in ("weights", "master_weights", "gradients", "optimizer_state"))
    assert state / GB == pytest.approx(gigabytes, abs=0.05)


@pytest.mark.parametrize(
    ("model", "coefficient"),
    [
        ("gpt2-124m", 34),
        ("gpt2-1558m", 34),
        ("llama3.2-1b", 45),
        ("llama3.1-8b", 41),
        ("llama3.1-70b", 40.5),
        ("llama2-7b", 37.5),
    ],
)
def test_block_coefficients(model, coefficient):
    architecture = find(model).architecture()
    assert layer_coefficient(saved_by_block(architecture), architecture.hidden_size) == coefficient


def test_tensor_parallel_blocks_are_10_plus_24_over_t():
    architecture = find("gpt2-774m").architecture()
    for t in (1, 2, 4):
        assert layer_coefficient(saved_by_block(architecture), 1280, t) == 10 + 24 / t


def test_scores_overtake_the_rest_where_34_h_equals_5_a_s():
    assert scores_overtake_at_tokens(find("gpt2-774m").architecture()) == 34 * 1280 / (5 * 20)


def test_checkpointing_keeps_what_it_says():
    assert alive_layers("full", 36).checkpoints == 36
    assert alive_layers("sqrt", 36) == alive_layers("sqrt", 36).__class__(6, 6, 6)
    assert (alive_layers("sqrt", 24).checkpoints, alive_layers("sqrt", 24).whole_layers) == (5, 5)
    # selective recomputation only drops scores, which fused attention never keeps
    assert board(**BASELINE, checkpointing="selective").peak_bytes == board(**BASELINE).peak_bytes
    eager = board(**BASELINE, attention="eager", checkpointing="selective").buckets["activations"]
    assert eager == board(**BASELINE).buckets["activations"] + 5 * 20 * 1024**2 * 8


def test_accumulation_costs_the_memory_of_one_micro_batch():
    assert (
        board(micro_batch=2, accumulation=4, sequence_length=1024).peak_bytes
        == board(micro_batch=2, sequence_length=1024).peak_bytes
    )


def test_liger_chunk_of_the_published_example():
    assert liger_chunk_rows(8192, 50257, 768) == 128
    result = board("gpt2-124m", **BASELINE, loss="liger_fused")
    chunk = result.buckets["logits"] - 8192 * 768 * 2
    assert chunk / MIB == pytest.approx(12.3, abs=0.05)


def test_lora_on_llama_3_1_8b_trains_42_million_parameters():
    assert lora_parameters(find("llama3.1-8b").architecture(), Lora(rank=16)) == 41_943_040


def test_lora_targets_by_name_and_a_name_that_is_not_there():
    architecture = find("llama3.1-8b").architecture()
    one = lora_parameters(architecture, Lora(rank=8, targets=("q_proj", "v_proj")))
    assert one == 32 * 8 * ((4096 + 4096) + (4096 + 1024))
    assert one == lora_parameters(architecture, Lora(rank=8, targets=("self_attn.q_proj", "v_proj")))
    with pytest.raises(JobError, match=r"lora\.targets: .query. names no linear layer of this llama"):
        lora_parameters(architecture, Lora(targets=("query",)))


def test_nf4_base_keeps_embeddings_and_head_in_16_bits():
    base = frozen_base(find("llama3.1-8b").architecture(), "nf4", 2)
    assert base.packed_bytes / base.packed_parameters == pytest.approx(0.515869, abs=1e-6)
    assert base.plain_parameters > 2 * 128256 * 4096
    assert (base.packed_bytes + base.plain_bytes + 41_943_040 * 4) / GIB == pytest.approx(5.47, abs=0.005)


def test_adafactor_keeps_rows_and_columns():
    shapes = (((4096, 1024), 2), ((4096,), 1))
    assert optimizer_state("adafactor", shapes, 4).device_bytes == 4 * (2 * (4096 + 1024) + 4096)


def test_eight_bit_state_starts_at_4096_elements_and_paged_state_leaves_the_allocator():
    assert optimizer_state("adamw8bit", (((4095,), 1),), 4).device_bytes == 8 * 4095
    assert optimizer_state("adamw8bit", (((64, 64), 1),), 4).device_bytes == 4096 * 2.03125
    paged = optimizer_state("paged_adamw8bit", (((1000, 1000), 1), ((64, 64), 1)), 4)
    assert (paged.device_bytes, paged.managed_bytes) == (4096 * 2.03125, 2 * (10**6 + 4 * 3907))


def test_muon_uses_momentum_for_matrices_and_adamw_for_vectors():
    assert optimizer_state("muon", (((10, 10), 1), ((10,), 1)), 4).device_bytes == 4 * 100 + 8 * 10


def test_offload_takes_the_state_off_the_device():
    sharding = {"mode": "zero2", "data_parallel": 4, "offload": "cpu"}
    levers = {**BASELINE, "precision": "bf16_master", "sharding": sharding}
    away = board(**levers, device="h200").buckets
    assert away["optimizer_state"] == away["master_weights"] == 0
    shared_pool = board(**levers, device="spark").buckets
    assert shared_pool["optimizer_state"] == 774_030_080 * 8 // 4


def test_pipeline_counts_its_fullest_stage():
    sharding = {"pipeline_parallel": 4}
    many = board(**BASELINE, accumulation=8, sharding=sharding)
    assert many.buckets["activations"] == board(**BASELINE).buckets["activations"]
    assert many.buckets["logits"] == 0
    single = board(**BASELINE, sharding=sharding)
    assert single.buckets["activations"] == board(**BASELINE).buckets["activations"] // 4
    assert single.buckets["logits"] > 0


def test_lesson_limits_on_the_spark():
    assert [limit.answer for limit in lesson_limits()] == ["about 7B", "40 to 50B", "about 70B"]
    assert lesson_limits()[0].substituted == "118 GiB / 16 B = 7.9B parameters"


MODELS = [entry.name for entry in entries() if entry.task == "causal_lm"]


@st.composite
def jobs(draw):
    lora = draw(st.sampled_from([None, Lora(rank=8), Lora(rank=64)]))
    mode = draw(st.sampled_from(["none", "ddp", "zero1", "zero2", "zero3", "fsdp2"]))
    return TrainingJob(
        model=draw(st.sampled_from(MODELS)),
        micro_batch=draw(st.integers(1, 64)),
        sequence_length=draw(st.integers(1, 8192)),
        accumulation=draw(st.sampled_from([1, 4])),
        precision=draw(st.sampled_from(LEVERS["precision"])),
        optimizer=draw(st.sampled_from(LEVERS["optimizer"])),
        attention=draw(st.sampled_from(LEVERS["attention"])),
        checkpointing=draw(st.sampled_from(LEVERS["checkpointing"])),
        loss=draw(st.sampled_from(LEVERS["loss"])),
        zero_grad=draw(st.sampled_from(LEVERS["zero_grad"])),
        lora=lora,
        base_quantization=draw(st.sampled_from(LEVERS["base_quantization"])) if lora else "none",
        sharding=Sharding(mode=mode, data_parallel=1 if mode == "none" else draw(st.sampled_from([1, 8]))),
    )


def of(job: TrainingJob) -> Whiteboard:
    assert job.model is not None
    return whiteboard(job, find(job.model).architecture())


@settings(max_examples=150, deadline=None)
@given(jobs())
def test_terms_sum_to_buckets_and_buckets_to_the_peak(job):
    result = of(job)
    assert tuple(result.buckets) == BUCKETS
    assert sum(result.buckets.values()) == result.peak_bytes
    for bucket in BUCKETS:
        assert sum(t.bytes for t in result.terms if t.bucket == bucket) == result.buckets[bucket]
    assert all(t.bytes >= 0 and t.substituted and t.source for t in result.terms)
    assert result.gap.peak_bytes == result.peak_bytes + sum(item.bytes for item in result.gap.items)
    assert result.gap.peak_bytes > 0


@settings(max_examples=100, deadline=None)
@given(jobs())
def test_more_work_never_needs_less(job):
    peak = of(job).peak_bytes
    assert of(job.with_(micro_batch=job.micro_batch + 1)).peak_bytes >= peak
    assert of(job.with_(sequence_length=job.sequence_length + 1)).peak_bytes >= peak


@settings(max_examples=60, deadline=None)
@given(jobs())
def test_qlora_never_needs_more_than_lora_nor_lora_than_full(job):
    full = of(job.with_(lora=None, base_quantization="none", precision="bf16", optimizer="adamw"))
    lora = full.job.with_(lora=Lora(rank=16))
    assert of(lora.with_(base_quantization="nf4")).peak_bytes <= of(lora).peak_bytes <= full.peak_bytes


@pytest.mark.parametrize("model", MODELS)
def test_every_parameter_of_the_catalogue_is_counted_once(model):
    architecture = find(model).architecture()
    shapes = trainable_shapes(architecture, None)
    product = 0
    for shape, copies in shapes:
        size = 1
        for side in shape:
            size *= side
        product += size * copies
    assert product == architecture.parameter_count


def test_a_recipes_weights_are_as_wide_as_the_jobs():
    assert {precision: recipe.weight_bytes for precision, recipe in RECIPES.items()} == WEIGHT_DTYPE_BYTES
