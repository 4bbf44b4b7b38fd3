"""`trainmem trace` in a terminal: what it prints, and the one line where it cannot."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from small_models import CAUSAL, CLASSIFIERS

from trainmem.cli import main
from trainmem_backend.trace import versions

pytestmark = pytest.mark.torch

SIZE = ("-b", "2", "-s", "24", "--precision", "bf16", "--device", "h200")


def config_file(folder: Path, family: str) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": family, **{**CLASSIFIERS, **CAUSAL}[family]}), encoding="utf-8")
    return str(path)


def test_a_report_ends_with_what_it_was_made_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "--model", config_file(tmp_path, "falcon"), *SIZE, "--steps", "2"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    before, _, table = out.partition("\nlargest at the peak\n")
    assert before.startswith("76,032 parameters (76,032 trained)\npeak ")
    contributors, _, end = table.partition("\n\n")
    assert all(" GiB  " in line for line in contributors.splitlines())
    assert re.fullmatch(rf"traced on {re.escape(versions())}, in \d+\.\d s after \d+\.\d s of imports\n", end)


def test_json_adds_up(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "--model", config_file(tmp_path, "glm4"), *SIZE, "--json"]) == 0
    answer = json.loads(capfd.readouterr().out)
    assert answer["schema"] == "trainmem.trace/1"
    assert sum(answer["buckets_at_peak"].values()) == answer["peak_allocated_bytes"] == answer["steps"][-1]
    assert answer["steps"][1] == answer["steps"][2]


def test_a_model_that_cannot_run_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = [
        "trace",
        "--model",
        config_file(tmp_path, "deberta"),
        *SIZE,
        "--task",
        "sequence_classification",
    ]
    assert main(command) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("trainmem trace: modeling_deberta.py, line ")
    assert err.count("\n") == 1
