"""What kernels allocate for themselves, and what a mixture of experts makes of a job's sizes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from trainmem.buckets import BUCKETS
from trainmem.job import Lora, TrainingJob
from trainmem.model import resolve
from trainmem.recording import Recording
from trainmem.tape import flash, four_bit, record, sorting
from trainmem.tape.hardware import hardware
from trainmem.tape.loading import trainables

_SMALL = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
_MIXTURES: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "head_dim": 16,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [3],
    },
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 16},
}


def _recorded(family: str, *, device: str = "h200", **levers: Any) -> tuple[TrainingJob, Recording]:
    config = {"model_type": family, **_SMALL, **_MIXTURES.get(family, {})}
    job = TrainingJob(
        config=config,
        device=device,
        **{"micro_batch": 2, "sequence_length": 64, "precision": "bf16", **levers},
    )
    return job, record(job, resolve(job).architecture)


def _sizes(recording: Recording, op: str) -> list[int]:
    allocations = [event for event in recording.events if event > 0]
    return [size for size, name in zip(allocations, recording.op_of, strict=True) if name.endswith(op)]


def _live_gradients(recording: Recording) -> Counter[int]:
    """Sizes of the gradients that live when the first optimizer step begins."""
    until = next(mark.event for mark in recording.marks if mark.phase == "optimizer")
    live: dict[int, int] = {}
    number = 0
    for event in recording.events[:until]:
        if event > 0:
            live[number] = event
            number += 1
        else:
            live.pop(~event)
    gradients = BUCKETS.index("gradients")
    return Counter(size for number, size in live.items() if recording.bucket_of[number] == gradients)


@pytest.mark.parametrize("checkpointing", ["none", "full", "sqrt"])
@pytest.mark.parametrize("lora", [None, Lora(rank=4, targets="all-linear")])
@pytest.mark.parametrize("family", sorted(_MIXTURES))
def test_every_trained_parameter_of_a_mixture_gets_a_gradient(
    family: str, lora: Lora | None, checkpointing: str
) -> None:
    """Also where some blocks have one expert and no router, as qwen3_moe's first, third and last here."""
    job, recording = _recorded(family, lora=lora, checkpointing=checkpointing)
    wanted = trainables(resolve(job).architecture, lora, 2)
    assert _live_gradients(recording) == Counter(parameter.size_bytes for parameter in wanted)


@pytest.mark.parametrize(
    ("device", "precision", "scratch"),
    [("h200", "bf16", True), ("h200", "fp32", False), ("a100-80gb", "bf16", False)],
)
def test_only_hopper_multiplies_16_bit_groups_in_one_kernel(
    device: str, precision: str, scratch: bool
) -> None:
    _, recording = _recorded("mixtral", device=device, precision=precision)
    assert bool(_sizes(recording, "grouped_mm arguments")) == scratch


def test_scans_and_sorts_ask_for_what_an_h200_showed() -> None:
    assert sorting.scan_scratch(8, 4) == 1023
    assert sorting.scan_scratch(4096, 8) == 1279
    assert sorting.radix_sort_scratch(2048, 64) == 1
    assert sorting.radix_sort_scratch(4096, 12) == 71_167


def _attention(**dims: int) -> dict[str, int]:
    return {"b": 1, "heads": 4, "s": 257, "d": 32, "d_flash": 32, "sm_count": 48, **dims}


@pytest.mark.parametrize(
    ("dims", "splits"),
    [
        (_attention(), 2),
        (_attention(s=256), 1),
        (_attention(heads=32), 1),
        (_attention(b=8, heads=12, s=1024, d=64, d_flash=64, sm_count=108), 1),
        (_attention(heads=8, s=1024, d=128, d_flash=128, sm_count=108), 3),
    ],
)
def test_flash_attention_splits_keys_where_query_blocks_leave_a_gpu_idle(
    dims: dict[str, int], splits: int
) -> None:
    """By hand: 5 x 4 query blocks of 96 places, two key blocks; 128 of 216 places want three of eight."""
    rows = 0 if splits == 1 else 4 * splits * dims["b"] * dims["heads"] * dims["s"]
    assert flash.split_sums(dims) == rows
    assert flash.split_outputs(dims) == rows * dims["d_flash"]


@pytest.mark.parametrize(("rows", "unpacked"), [(1, False), (1300, True)])
def test_a_4_bit_weight_is_unpacked_unless_few_rows_meet_it(rows: int, unpacked: bool) -> None:
    assert four_bit.reads_packed(hardware("h200"), rows, 4096, 4096) is not unpacked


def test_autocast_copies_embeddings_that_want_gradients_once() -> None:
    """Post-norm blocks under LoRA and checkpoints read a leaf in fp32, whose 16-bit copy autocast keeps."""
    levers: dict[str, Any] = {
        "lora": Lora(rank=4, targets="all-linear"),
        "checkpointing": "full",
        "precision": "amp_bf16",
    }
    _, recording = _recorded("olmo2", **levers)
    first_block = [
        size
        for size, name in zip((e for e in recording.events if e > 0), recording.op_of, strict=True)
        if name in {f"layers.0.self_attn.{x}_proj: cast" for x in "qkv"} and size == 2 * 2 * 64 * 64
    ]
    steps, runs = 3, 2  # forward, and again in backward
    assert len(first_block) == steps * runs
