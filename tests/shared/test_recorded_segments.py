"""Jobs drawn by number that were predicted a little wrong: with segments where the driver put them, all is right.

So allocations, frees and the caching allocator are the recorded run's, and what is left to know is the driver.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainmem.job import TrainingJob
from trainmem.model import resolve
from trainmem.recording import counters, read_step
from trainmem.tape import record

MIB = 1 << 20
TOP = 1 << 46
DATA = Path(__file__).parents[1] / "data" / "h200_segments.jsonl"
RECORDED = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
"""Segments are [size, how far below the top of the addresses], in MiB, in the order in which they were asked for."""


class RecordedSegments:
    """Segments where the recorded run had them."""

    is_untouched = False

    def __init__(self, segments: list[list[int]]) -> None:
        self.left = segments[::-1]

    def place(self, size_bytes: int) -> int:
        size, below = self.left.pop()
        assert size * MIB == size_bytes
        return TOP - below * MIB

    def release(self, address: int, size_bytes: int) -> None:
        pass

    def load_kernels(self, size_bytes: int) -> None:
        pass


@pytest.mark.parametrize("run", RECORDED, ids=lambda run: run["label"])
def test_every_figure_is_the_gpu_s_with_segments_where_the_driver_put_them(run: dict[str, Any]) -> None:
    job = TrainingJob.from_json(run["job"])
    recording = record(job, resolve(job).architecture)
    placement = RecordedSegments(run["segments"])
    result = counters(recording, placement=placement)
    for number, name in ((1, "first_step"), (recording.marks[-1].step, "steady_step")):
        figures = read_step(recording, result, number)
        predicted = {**figures.phases, "peak_reserved_bytes": figures.peak_reserved_bytes}
        assert predicted == {key: run[name][key] for key in predicted}
    assert not placement.left
