"""fp32 steps measured on an H200 whose masks' rows are no whole 16 elements, figure by figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainmem.job import TrainingJob
from trainmem.model import resolve
from trainmem.recording import counters, read_step
from trainmem.tape import record

DATA = Path(__file__).parents[1] / "data" / "h200_uneven_masks.jsonl"
STEPS = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("measured", STEPS, ids=lambda step: str(step["job"]["sequence_length"]))
def test_a_mask_is_filled_up_to_whole_8_elements(measured: dict[str, Any]) -> None:
    """The memory-efficient kernel's bias: rows of 264 elements for 257 tokens, and no copy for 24."""
    job = TrainingJob.from_json(measured["job"])
    recording = record(job, resolve(job).architecture)
    result = counters(recording)
    for number, name in ((1, "first_step"), (3, "steady_step")):
        figures = read_step(recording, result, number)
        predicted = {**figures.phases, "peak_reserved_bytes": figures.peak_reserved_bytes}
        assert predicted == {key: measured[name][key] for key in predicted}
