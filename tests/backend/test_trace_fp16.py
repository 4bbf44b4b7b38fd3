"""What a trace of fp16 holds that one of bf16 does not, as recorded on an H200."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from trainmem.job import TrainingJob  # noqa: E402
from trainmem_backend.trace import trace  # noqa: E402
from trainmem_backend.trace.gpu import gpu_traits  # noqa: E402
from trainmem_backend.trace.session import tracing  # noqa: E402

pytestmark = pytest.mark.torch

LAYERS, WIDTH, INNER = 2, 64, 384
CONFIG = {
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
}


def traced(**levers: Any) -> list[tuple[str, int]]:
    """The ops of the first forward, each with the bytes that it allocated."""
    job = TrainingJob(config=CONFIG, micro_batch=3, sequence_length=32, device="h200")
    recording = trace(TrainingJob.from_json({**job.to_json(), **levers}), steps=1)
    starts = {mark.phase: mark.event for mark in recording.marks}
    before = sum(event > 0 for event in recording.events[: starts["forward"]])
    sizes = [event for event in recording.events[starts["forward"] : starts["backward"]] if event > 0]
    return [(recording.op_of[before + number], size) for number, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("precision", "checkpointing", "casts"),
    [("amp_fp16", "none", LAYERS), ("amp_fp16", "selective", 0), ("amp_bf16", "none", 0)],
)
def test_autocast_casts_a_weight_that_was_unpacked_to_bf16(
    precision: str, checkpointing: str, casts: int
) -> None:
    """Inside a dispatch mode, as a selective checkpoint's, autocast is off; down_proj alone is unpacked at all."""
    levers = {"precision": precision, "checkpointing": checkpointing}
    found = traced(**levers, lora={"rank": 2, "targets": ["q_proj"]}, base_quantization="nf4")
    assert found.count(("to", 2 * WIDTH * INNER)) == casts
    assert found.count(("empty", 2 * WIDTH * INNER)) == LAYERS


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize(("dtype", "copies"), [(torch.float16, []), (torch.bfloat16, [4 * 32 * 64])])
def test_a_softmax_to_fp32_reads_fp16_as_it_stands(name: str, dtype: torch.dtype, copies: list[int]) -> None:
    """at::softmax, which of 16-bit dtypes knows a kernel for fp16 alone."""
    with tracing(gpu_traits("h200")) as session:
        x = torch.zeros(32, 64, device="cuda", dtype=dtype, requires_grad=True)
        before = len(session.recorder.recording.events)
        out = getattr(torch, name)(x, -1, dtype=torch.float32)
        made = [size for size in session.recorder.recording.events[before:] if size > 0]
        out.sum().backward()
        assert x.grad is not None
        assert x.grad.dtype is dtype
    assert made == [*copies, 4 * 32 * 64]
