"""Buckets told from lifetimes and sizes alone, against the tape, which knows what it allocates.

The predicted snapshots are stripped of their stacks and categories, so that nothing but named regions is left:
harder than a recorded file, whose stacks name losses, optimizers and autocast.
"""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from snapshot_files import check

from trainmem.buckets import BUCKETS
from trainmem.job import TrainingJob
from trainmem.predicted_snapshot import predicted_snapshot
from trainmem.snapshot import analyse, read_snapshot
from trainmem.snapshot.timeline import live_at

JOB = {"model": "gpt2-124m", "micro_batch": 2, "sequence_length": 512, "device": "h200"}
RUNS: dict[str, dict[str, Any]] = {
    "amp": {},
    "checkpointing": {"checkpointing": "full"},
    "eager": {"attention": "eager"},
    "adamw8bit": {"optimizer": "adamw8bit"},
    "lora": {"precision": "bf16", "lora": {"rank": 16}},
    "bf16": {"precision": "bf16"},
    "masters": {"precision": "bf16_master"},
    "accumulation": {"accumulation": 2},
    "zeroed gradients": {"zero_grad": "zeros"},
    "llama": {"model": "llama3.2-1b", "precision": "bf16", "checkpointing": "full"},
}


def stripped(data: bytes) -> bytes:
    content = pickle.loads(data)
    for event in content["device_traces"][0]:
        event.pop("frames", None)
        event.pop("category", None)
    for segment in content["segments"]:
        for block in segment["blocks"]:
            block.pop("frames", None)
    return pickle.dumps(content)


@pytest.mark.parametrize("name", RUNS)
def test_nearly_all_of_the_peak_is_told_right(name: str) -> None:
    data = predicted_snapshot(TrainingJob.from_json({**JOB, **RUNS[name]}))
    truth = analyse(read_snapshot(data)).devices[0]
    told = analyse(read_snapshot(stripped(data))).devices[0]
    check(told)
    assert told.peak_allocated_bytes == truth.peak_allocated_bytes
    right = sum(
        truth.replay.blocks.size[number]
        for number in live_at(truth.replay, truth.peak_instant)
        if truth.attribution.bucket_of[number] == told.attribution.bucket_of[number]
    )
    assert right >= 0.96 * truth.peak_allocated_bytes


def test_a_predicted_snapshot_says_itself_what_it_holds() -> None:
    job = TrainingJob.from_json(JOB)
    found = analyse(read_snapshot(predicted_snapshot(job))).devices[0]
    assert found.timetable.steps == 3
    assert set(found.buckets_at_peak) == set(BUCKETS)
    assert found.buckets_at_peak["weights"] == pytest.approx(4 * 124_439_808, rel=0.01)
