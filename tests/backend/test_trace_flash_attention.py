"""Scripts that use the package flash-attn, which is not installed here and is not needed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from transformers import AutoConfig
from transformers.utils import is_flash_attn_2_available

from trainmem.recording import Recording, StepFigures, counters, read_step
from trainmem_backend.trace.errors import TraceError
from trainmem_backend.trace.program import trace_script

pytestmark = pytest.mark.torch

CONFIG = {
    "hidden_size": 512,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 512,
}
TRAIN = """
import torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained('model', dtype=torch.bfloat16, attn_implementation='{}').cuda()
optimizer = torch.optim.SGD(model.parameters())
for _ in range(3):
    ids = torch.randint(0, 500, {}, device='cuda')
    model(input_ids=ids, labels=ids{}).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
BY_HAND = """
import torch
from flash_attn import flash_attn_func
weight = torch.nn.Linear({width}, {width}, bias=False, device='cuda', dtype=torch.{dtype})
optimizer = torch.optim.SGD(weight.parameters())
for _ in range(3):
    x = torch.zeros(2, 300, {heads}, {width}, device='cuda', dtype=torch.{dtype})
    flash_attn_func(weight(x), weight(x), weight(x), causal=True{more}).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def traced(folder: Path, body: str, monkeypatch: pytest.MonkeyPatch, device: str = "a100-80gb") -> Recording:
    AutoConfig.for_model("llama", **CONFIG).save_pretrained(folder / "model")
    script = folder / "script.py"
    script.write_text(body)
    monkeypatch.chdir(folder)
    return trace_script(script, [], device=device)


def steady(recording: Recording) -> StepFigures:
    return read_step(recording, counters(recording), 3)


def test_it_takes_what_the_same_kernel_of_pytorch_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's copy of FlashAttention 2, which SDPA takes on an A100, keeps a second, unused random state a block."""
    ours = traced(tmp_path, TRAIN.format("flash_attention_2", "(4, 1000)", ""), monkeypatch)
    theirs = traced(tmp_path, TRAIN.format("sdpa", "(4, 1000)", ""), monkeypatch)
    unused = 512 * CONFIG["num_hidden_layers"]
    got, like = (steady(recording).phases for recording in (ours, theirs))
    for name in ("after_forward_bytes", "peak_forward_bytes", "peak_backward_bytes"):
        assert got[name] == like[name] - unused, name
    assert got["after_backward_bytes"] == like["after_backward_bytes"]
    assert any("flash_attn" in note for note in ours.notes)
    assert not any("flash_attn" in note for note in theirs.notes)


@pytest.mark.parametrize(
    ("shape", "more"),
    [
        ("(2, 256)", ", attention_mask=torch.ones_like(ids)"),
        ("(1, 512)", ", position_ids=torch.cat([torch.arange(312), torch.arange(200)])[None].cuda()"),
    ],
    ids=["padded", "packed"],
)
def test_sequences_of_several_lengths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str, more: str
) -> None:
    recording = traced(tmp_path, TRAIN.format("flash_attention_2", shape, more), monkeypatch)
    assert steady(recording).peak_allocated_bytes > 0


def test_what_a_call_by_hand_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three inputs, the result, an fp32 number for every query and head, and the random state."""
    body = BY_HAND.format(width=64, heads=8, dtype="bfloat16", more="")
    kept = steady(traced(tmp_path, body, monkeypatch, "h200")).phases
    heads = 2 * 300 * 8 * 64 * 2
    log_sum_exp = -(-2 * 300 * 8 * 4 // 512) * 512
    # three products and the result; the random state, the loss and its gradient
    assert kept["after_forward_bytes"] - kept["start_bytes"] == 4 * heads + log_sum_exp + 3 * 512


def test_odd_heads_are_padded_and_a_result_that_repeats_takes_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, repeated = (
        steady(
            traced(tmp_path, BY_HAND.format(width=20, heads=3, dtype="float16", more=more), monkeypatch)
        ).peak_allocated_bytes
        for more in ("", ", deterministic=True")
    )
    # 108 multiprocessors over six heads: 18 accumulators in place of one
    assert repeated > plain + 16 * 4 * 2 * 384 * 3 * 32


@pytest.mark.parametrize(
    ("width", "dtype", "more", "line"),
    [
        (64, "float32", "", "only support fp16 and bf16"),
        (320, "bfloat16", "", "heads of 320"),
        (64, "bfloat16", ", return_attn_probs=True", "return_attn_probs"),
    ],
)
def test_what_it_does_not_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int, dtype: str, more: str, line: str
) -> None:
    with pytest.raises(TraceError, match=line):
        traced(tmp_path, BY_HAND.format(width=width, heads=2, dtype=dtype, more=more), monkeypatch)


def test_nothing_of_it_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traced(tmp_path, TRAIN.format("flash_attention_2", "(1, 64)", ""), monkeypatch)
    assert "flash_attn" not in sys.modules
    assert not is_flash_attn_2_available()
