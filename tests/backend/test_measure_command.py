"""The commands, up to a whole run on a pretended device."""

import json
import sys

import pytest

from trainmem.cli import main
from trainmem.job import TrainingJob
from trainmem.results import read_row, refusals

TINY = {
    "config": {
        "model_type": "gpt2",
        "vocab_size": 256,
        "n_positions": 32,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 2,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    },
    "micro_batch": 2,
    "sequence_length": 16,
    "precision": "bf16",
}

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")


def test_a_list_measures_nothing_and_names_every_trial(capsys):
    assert main(["measure", "--suite", "verify", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 8
    assert "predicted" in lines[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["measure"], "suite: missing"),
        (["measure", "--suite", "lessons"], "suite: 'lessons' is not one of all, machine"),
        (["measure", "--suite", "lesson", "--only", "xyz"], "only: no label contains 'xyz'"),
        (["measure", "--suite", "lesson", "--capacity", "118 apples"], "capacity: '118 apples'"),
        (["measure", "--suite", "lesson", "--overlap", "0"], "overlap: 0"),
        (["measure", "--job", "{"], "job: not JSON"),
        (["measure", "--job", '{"model": "gpt2-124m", "micro_batch": 0}'], "micro_batch: 0"),
        (["verify", "--tolerance", "0"], "tolerance: 0.0"),
        (["publish"], "run: missing"),
        (["publish", "nowhere"], "run: nowhere"),
    ],
)
def test_wrong_input_is_one_line_and_exit_2(arguments, said, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a CUDA device")
@pytest.mark.parametrize("command", [["verify"], ["measure", "--suite", "verify"]])
def test_a_machine_without_cuda_is_one_line_and_exit_2(command, tmp_path, capsys):
    assert main([*command, "--run", str(tmp_path / "run")]) == 2
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1)
    assert error.startswith(f"trainmem {command[0]}: device: torch {torch.__version__} ")
    assert "--pretend" in error
    assert "Error" not in error


def test_a_whole_run_on_a_pretended_device(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TRAINMEM_COMMIT", "0123abc")
    arguments = ["measure", "--job", json.dumps(TINY), "--run", str(tmp_path), "--pretend", "8GiB"]
    monkeypatch.setattr(sys, "argv", ["trainmem", *arguments])
    assert main(arguments) == 0
    row = read_row(json.loads((tmp_path / "rows.jsonl").read_text()))
    assert row.outcome == "ok"
    assert row.environment["commit"] == "0123abc"
    assert row.environment["command"].startswith("trainmem measure --job")
    measured = row.measured
    assert measured["dtypes"]["parameters"] == {"bfloat16": 2 * measured["parameters"]}
    assert measured["saved_tensors"]["bytes"] > 0
    assert measured["throughput"]["padded_tokens_per_step"] == 32
    assert sum(measured["attention_kernels"].values()) == 2
    assert any("dry run" in reason for reason in refusals(row))
    # The same command again has nothing to do.
    assert main(arguments) == 0
    assert "nothing left to do" in capsys.readouterr().err
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 1


def test_verify_fails_where_the_device_does_not_keep_the_prediction(tmp_path, monkeypatch, capsys):
    from trainmem_backend.measure.suites import SUITES
    from trainmem_backend.measure.trial import Trial

    tiny = Trial(suite="verify", label="tiny", job=TrainingJob.from_json(TINY), passes=("memory",))
    monkeypatch.setitem(SUITES, "verify", lambda: [tiny])
    # A pretended device makes its counters up, so no prediction of them can hold.
    assert main(["verify", "--pretend", "8GiB", "--run", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "off by more than 2.0%" in out
    assert "does not hold here" in out
