"""Thirty steps measured with expandable segments: allocated and reserved are right to the byte.

Measured on an NVIDIA H200 (torch 2.11.0+cu130, driver 580.159.04) by
``trainmem measure --suite verify --suite levers --allocator expandable_segments:True``.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from trainmem.allocator import AllocatorSettings
from trainmem.estimate import estimate
from trainmem.job import TrainingJob

_FILE = Path(__file__).parents[1] / "data" / "h200_expandable.jsonl"
_ROWS = [json.loads(line) for line in _FILE.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("row", _ROWS, ids=lambda row: row["label"])
def test_counters_with_expandable_segments(row: dict[str, Any]) -> None:
    settings = AllocatorSettings.parse("expandable_segments:True")
    answer = estimate(TrainingJob.from_json(row["job"]), settings=settings)
    assert answer.peak_allocated_bytes == row["peak_allocated_bytes"]
    assert answer.peak_reserved_bytes == row["peak_reserved_bytes"]
