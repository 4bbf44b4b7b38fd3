"""`trainmem trace` in a terminal: what it prints, and the one line where it cannot."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
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
    contributors, fits, end = table.split("\n\n")
    assert re.fullmatch(r"Fits on the NVIDIA H200.*, with \d+ GiB to spare\.", fits)
    assert all(" GiB  " in line for line in contributors.splitlines())
    assert re.fullmatch(rf"traced on {re.escape(versions())}, in \d+\.\d s after \d+\.\d s of imports\n", end)


def test_json_adds_up(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "--model", config_file(tmp_path, "glm4"), *SIZE, "--json"]) == 0
    answer = json.loads(capfd.readouterr().out)
    assert answer["schema"] == "trainmem.trace/1"
    assert sum(answer["buckets_at_peak"].values()) == answer["peak_allocated_bytes"] == answer["steps"][-1]
    assert answer["steps"][1] == answer["steps"][2]
    verdict = answer["verdict"]
    assert (verdict["device"], verdict["fits"]) == ("h200", True)
    assert verdict["headroom_bytes"] == verdict["limit_bytes"] - answer["peak_reserved_bytes"]


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


@pytest.mark.parametrize(
    ("flags", "said"), [(("--device", "t4"), "Does not fit on the NVIDIA T4: short by "), ((), None)]
)
def test_a_script_is_held_against_the_device_that_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], flags: tuple[str, ...], said: str | None
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Linear(32768, 32768, device='cuda')\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "model(torch.ones(2, 32768, device='cuda')).sum().backward()\n"
        "optimizer.step()\n"
    )
    assert main(["trace", "--steps", "1", *flags, str(script)]) == 0
    out = capfd.readouterr().out
    assert "fit on" not in out.lower() if said is None else said in out


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("-b", "4"), "-b: "),
        (("--precision", "bf16"), "--precision: "),
        (("--no-reshard-after-forward",), "--no-reshard-after-forward: "),
        (("--data-parallel", "0"), "sharding.data_parallel: "),
    ],
)
def test_what_a_script_sets_itself_is_no_flag(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], flags: tuple[str, ...], named: str
) -> None:
    (tmp_path / "script.py").write_text("")
    assert main(["trace", *flags, str(tmp_path / "script.py")]) == 2
    err = capfd.readouterr().err
    assert err.startswith(f"trainmem trace: {named}")
    assert err.count("\n") == 1


def test_a_script_that_crashes_the_process_shows_its_line(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os, signal\n\nos.kill(os.getpid(), signal.SIGSEGV)\n", encoding="utf-8")
    command = [sys.executable, "-m", "trainmem", "trace", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGSEGV
    assert f'File "{script}", line 3' in done.stderr
