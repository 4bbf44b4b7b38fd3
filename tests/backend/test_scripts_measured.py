"""Whole scripts, as people write them, against what the same files took on an H200.

Each was run on the GPU with random weights of the model's shape until it ended, and `torch.cuda.max_memory_allocated`
and `max_memory_reserved` were read; those with ``ranks`` by torchrun on as many GPUs, the larger of the ranks'
figures. Here they run with no GPU and a config.json alone: each script with the smallest model it ran with, and with
``TRAINMEM_SCRIPTS=all`` with every one.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from trainmem.model.catalogue import find
from trainmem.recording import counters
from trainmem_backend.trace.program import trace_script

pytestmark = pytest.mark.torch

SCRIPTS = Path(__file__).parents[1] / "data" / "scripts"
RUNS: list[dict[str, Any]] = json.loads((SCRIPTS / "measured.json").read_text())["runs"]
if os.environ.get("TRAINMEM_SCRIPTS") != "all":
    largest_first = sorted(RUNS, key=lambda run: -int(run["peak_allocated_bytes"]))
    RUNS = list({run["script"]: run for run in largest_first}.values())


@pytest.mark.parametrize(
    "run", RUNS, ids=lambda run: "-".join(str(run[key]) for key in ("script", "model", "ranks") if key in run)
)
def test_a_script_takes_what_it_took(
    run: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in ("random_tokens.py", run["script"]):
        shutil.copy(SCRIPTS / file, tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(dict(find(run["model"]).config)))
    monkeypatch.chdir(tmp_path)
    recording = trace_script(tmp_path / run["script"], ["model"], device="h200", ranks=run.get("ranks", 1))
    found = counters(recording)
    got = max(found.allocated), max(found.reserved)
    # What the README says of these runs is made from this very pair.
    assert got == (run["traced_allocated_bytes"], run["traced_reserved_bytes"])
    # Which block the allocator left unsplit is not known to the byte: it hangs on where the driver puts segments,
    # around NCCL's memory too, and the two ranks of a run may differ. Five of the runs on two GPUs did not come out;
    # placed at the addresses their segments had there, these traces' counters are the GPU's at each of three steps.
    # NCCL's memory moves the addresses that segments of several ranks get
    share = 0.0025 if "ranks" in run else 0.001
    assert got[0] == pytest.approx(run["peak_allocated_bytes"], rel=share)
    assert got[1] == pytest.approx(run["peak_reserved_bytes"], rel=share)
