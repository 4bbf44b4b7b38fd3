"""Board plus gap against peaks measured on one H200 (torch 2.11, transformers 5.17)."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pytest

from trainmem.estimate import estimate
from trainmem.job import TrainingJob
from trainmem.model.catalogue import find
from trainmem.whiteboard import Whiteboard, whiteboard

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "h200_peaks.jsonl").read_text().splitlines()
]


def board(job_json: dict[str, object]) -> Whiteboard:
    job = TrainingJob.from_json(job_json)
    assert job.model is not None
    return whiteboard(job, find(job.model).architecture(job.task))


ERRORS = [
    (
        row["job"]["model"],
        board(row["job"]).peak_bytes / row["peak_allocated_bytes"] - 1,
        board(row["job"]).gap.peak_bytes / row["peak_allocated_bytes"] - 1,
    )
    for row in ROWS
]


def test_the_board_alone_is_as_far_off_as_its_docstring_says():
    errors = [abs(alone) for _, alone, _ in ERRORS]
    assert len(errors) == 106
    assert median(errors) == pytest.approx(0.14, abs=0.005)
    assert max(errors) == pytest.approx(0.40, abs=0.005)


def test_the_gap_explains_the_measurements():
    errors = [abs(explained) for _, _, explained in ERRORS]
    assert median(errors) <= 0.0036
    assert max(errors) <= 0.0435


def test_decoders_are_within_two_percent():
    # Liger's fp32 accumulator of the head's gradient is not modelled: -2.1%
    errors = sorted(abs(explained) for model, _, explained in ERRORS if not model.startswith("bert"))
    assert errors[-2] <= 0.02
    assert errors[-1] <= 0.0215


def test_gpt2_under_amp_is_explained_by_name():
    job = {"model": "gpt2-774m", "micro_batch": 8, "sequence_length": 1024}
    gap = board(job).gap
    by_name = {item.name: item.bytes for item in gap.items}
    tokens_and_width = 36 * 8 * 1024 * 1280
    assert by_name["gelu_new is a chain of small operations"] == 48 * tokens_and_width
    assert by_name["fp32 residual stream"] == 4 * tokens_and_width
    assert by_name["no gradients yet"] == -4 * 774_030_080
    assert gap.instant.startswith("start of backward")


@pytest.mark.parametrize(
    "job",
    [
        {"model": "gpt2-774m", "micro_batch": 8},
        {"model": "llama3.1-8b", "precision": "bf16", "checkpointing": "full"},
        {"model": "qwen3-1.7b", "lora": {"rank": 16}, "base_quantization": "nf4"},
        {
            "model": "llama3.2-1b",
            "precision": "fsdp_mp_bf16",
            "sharding": {"mode": "fsdp2", "data_parallel": 8},
        },
    ],
)
def test_board_gap_and_rest_close_to_the_byte(job):
    found, answer = board(job), estimate(TrainingJob.from_json(job))
    rests = found.rests(answer.buckets_at_peak)
    assert found.gap.peak_bytes + sum(rests.values()) == answer.peak_allocated_bytes
    for bucket, rest in rests.items():
        items = sum(item.bytes for item in found.gap.items if item.bucket == bucket)
        assert found.buckets[bucket] + items + rest == answer.buckets_at_peak[bucket]


def test_a_foreach_step_can_be_the_peak():
    job = {"model": "llama3.1-8b", "sequence_length": 2048, "precision": "bf16", "checkpointing": "full"}
    foreach, fused = board(job).gap, board({**job, "optimizer": "adamw_fused"}).gap
    assert foreach.instant.startswith("optimizer step")
    assert foreach.peak_bytes - fused.peak_bytes == pytest.approx(2 * 8_030_261_248, rel=0.15)


@pytest.mark.parametrize(
    ("ranks", "reshard", "checkpointing", "gib"),
    [
        (8, False, "none", 16.66),
        (8, True, "none", 14.96),
        (64, True, "none", 13.45),
        (64, True, "full", 7.07),
    ],
)
def test_one_rank_of_fsdp2(ranks, reshard, checkpointing, gib):
    """Llama 3.2 1B, fp32 shards with bf16 mixed precision, measured over a fake process group."""
    sharding = {"mode": "fsdp2", "data_parallel": ranks, "reshard_after_forward": reshard}
    job = {
        "model": "llama3.2-1b",
        "micro_batch": 2,
        "sequence_length": 2048,
        "precision": "fsdp_mp_bf16",
        "checkpointing": checkpointing,
        "sharding": sharding,
        "device": "h200",
    }
    assert board(job).gap.peak_bytes / 2**30 == pytest.approx(gib, rel=0.008)


@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize("base", ["none", "nf4", "int8"])
@pytest.mark.parametrize("model", ["qwen3-1.7b", "phi3-mini", "pythia-1.4b", "gpt2-774m"])
def test_adapters_under_autocast_are_explained(model, base, checkpointing):
    """Frozen weights are not cached, packed ones are not cast, and int8 layers keep inputs that no checkpoint drops."""
    job = {
        "model": model,
        "micro_batch": 2,
        "sequence_length": 512,
        "lora": {"rank": 16},
        "base_quantization": base,
        "checkpointing": checkpointing,
        "device": "h200",
    }
    peak = estimate(TrainingJob.from_json(job)).peak_allocated_bytes
    assert board(job).gap.peak_bytes == pytest.approx(peak, rel=0.035)


def test_gpt2_has_no_layer_that_is_packed():
    plain = {"model": "gpt2-774m", "lora": {"rank": 16}}
    assert board({**plain, "base_quantization": "nf4"}).buckets == board(plain).buckets
