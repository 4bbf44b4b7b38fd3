"""Steps measured on an H200, traced again: one row for each lever that is quick to trace."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import cache
from statistics import median

import pytest

from trainmem.job import TrainingJob
from trainmem.recording import counters, read_step
from trainmem.results import MeasuredRow, published_rows
from trainmem_backend.trace import trace

pytestmark = pytest.mark.torch

ROWS = {
    "6a9dbecefea5": "gpt2-124m, amp_bf16",
    "671a1df8f999": "gpt2-124m, fp32, eager",
    "bdaeb1a7c953": "gpt2-124m, bf16",
    "4c098e117114": "gpt2-124m, accumulation",
    "974adbbddf2c": "gpt2-124m, checkpointing",
    "d2aa35ebc667": "gpt2-355m, sgd_momentum",
    "03e9bfd1e1d5": "gpt2-355m, lion8bit",
    "6627b1688099": "gpt2-355m, muon",
    "a21ce2b1ce64": "opt-350m",
    "855f3a34e972": "bert-base, fp32",
    "4ebc0bc70c1e": "bert-base, amp_bf16",
    "6008043cea55": "modernbert-base",
    "fa8675fbd0da": "llama3.2-1b, bf16_stochastic",
    "7240c30098cc": "llama3.2-1b, bf16_kahan",
    "7ae9aca736bb": "llama3.2-1b, bf16_master",
    "72708570ec6f": "llama3.2-1b, amp_fp16",
    "9e8213940df9": "llama3.2-1b, zero_grad to zeros",
    "a0d04b957aba": "llama3.2-1b, eager",
    "2548da933b02": "llama3.2-1b, selective checkpointing",
    "995507205184": "llama3.2-1b, adafactor",
    "28d97bade57c": "llama3.2-1b, liger_fused",
    "83e768f8ef3f": "llama3.2-1b, adapters of two projections",
    "ba5fc46ee500": "llama3.2-1b, adapters on nf4",
    "55ac43767017": "llama3.2-1b, fsdp2",
}
ALLOCATED, RESERVED = 0.005, 0.04
MEDIAN_ALLOCATED, MEDIAN_RESERVED = 0.0001, 0.001
"""How far a traced peak may be from the measured one, as a share of it: any row's, and half of the rows'."""


@pytest.fixture(autouse=True)
def what_is_there_is_not_collected() -> Iterator[None]:
    gc.freeze()
    yield
    gc.unfreeze()


@cache
def rows() -> dict[str, MeasuredRow]:
    return {row.id: row for row in published_rows()}


@cache
def errors(row_id: str) -> tuple[float, float]:
    """How far the traced allocated and reserved peaks are from the measured ones, as shares of these."""
    row = rows()[row_id]
    assert isinstance(row.job, TrainingJob)
    recording = trace(row.job, steps=2)
    step = read_step(recording, counters(recording), 2)
    measured = row.data["measured"]
    assert recording.trainable_parameters == measured["trainable_parameters"]
    assert step.peak_reserved_bytes is not None
    return (
        abs(step.peak_allocated_bytes / measured["peak_allocated_bytes"] - 1),
        abs(step.peak_reserved_bytes / measured["peak_reserved_bytes"] - 1),
    )


@pytest.mark.parametrize("row_id", ROWS, ids=lambda row_id: ROWS[row_id])
def test_a_measured_step_is_traced(row_id: str) -> None:
    allocated, reserved = errors(row_id)
    assert allocated <= ALLOCATED
    assert reserved <= RESERVED


def test_half_of_the_measured_steps_are_traced_to_the_last_digits() -> None:
    allocated, reserved = zip(*(errors(row_id) for row_id in ROWS), strict=True)
    assert median(allocated) <= MEDIAN_ALLOCATED
    assert median(reserved) <= MEDIAN_RESERVED
