"""Segments' addresses fall on one machine and rise on another, and that alone can decide reserved memory."""

from __future__ import annotations

import pytest

from trainmem.allocator import RisingAddresses
from trainmem.job import TrainingJob
from trainmem.model import resolve
from trainmem.recording import counters, most_reserved, read_step
from trainmem.tape import record

MIB = 1 << 20
STEADY = 3


def test_rising_addresses_never_go_back() -> None:
    placement = RisingAddresses()
    first = placement.place(2 * MIB)
    second = placement.place(20 * MIB)
    placement.release(first, 2 * MIB)
    assert first < second < placement.place(2 * MIB)


@pytest.mark.parametrize(
    ("changes", "measured"),
    [
        ({"precision": "amp_bf16", "checkpointing": "full"}, 40_527_462_400),
        ({"precision": "bf16"}, 31_690_063_872),
    ],
    ids=["checkpointing", "bf16"],
)
def test_the_trace_answers_the_larger(changes: dict[str, str], measured: int) -> None:
    job = TrainingJob(model="qwen2.5-1.5b", micro_batch=2, sequence_length=2048, device="h200", **changes)
    recording = record(job, resolve(job).architecture)
    falling = counters(recording)
    rising = counters(recording, placement=RisingAddresses())
    reserved = [read_step(recording, result, STEADY).peak_reserved_bytes for result in (falling, rising)]
    assert all(reserved)
    assert most_reserved(recording, falling, STEADY) == max(value or 0 for value in reserved)
    assert reserved[1] == pytest.approx(measured, rel=0.001)
