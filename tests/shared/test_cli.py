"""The command line, as a user and as a program calls it."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from trainmem import __version__
from trainmem.cli import COMMANDS, main


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    try:
        status = main(argv)
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else 2
    out, err = capsys.readouterr()
    return status, out, err


def test_the_overview_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--help")
    assert status == 0
    assert all(name in out for name in COMMANDS)


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version")[1].strip() == f"trainmem {__version__}"


def test_an_estimate_for_a_reader(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(
        capsys, "estimate", "--model", "gpt2-774m", "-b", "8", "-s", "1024", "--device", "h200"
    )
    assert status == 0
    assert "44.44 GiB" in out
    assert "start of backward" in out
    assert "Fits on the NVIDIA H200" in out
    assert "<0.001 GiB" in out
    assert "0.000 GiB" not in out


def test_an_estimate_for_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "estimate", "-m", "gpt2-124m", "--detail", "fast", "--json")
    answer = json.loads(out)
    assert (status, answer["schema"], answer["peak_reserved_bytes"]) == (0, "trainmem.estimate/1", None)


def test_a_job_that_does_not_fit_is_shown_the_way_to_its_plan(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("-m", "gpt2-774m", "-b", "8", "-s", "1024", "--optimizer", "adamw_fused", "-d", "rtx-4090")
    status, out, _ = run(capsys, "estimate", *argv)
    assert status == 0
    plan = "trainmem fit --model gpt2-774m -b 8 -s 1024 --optimizer adamw_fused --device rtx-4090"
    assert out.splitlines()[-1] == f"what would make it fit, and at what price: `{plan}`"
    assert run(capsys, *plan.split()[1:])[0] == 0
    _, out, _ = run(capsys, "estimate", *argv[:-1], "h200")
    assert "trainmem fit" not in out
    status, out, _ = run(capsys, "estimate", *argv[:-1], "h200", "--capacity", "30GiB")
    assert status == 1
    assert out.splitlines()[-1].endswith("--device h200 --budget 30GiB`")


@pytest.mark.parametrize(("device", "fits"), [("rtx-4090", False), ("h200", True), ("m3-ultra", None)])
def test_the_verdict_is_beside_the_contracts_keys(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, device: str, fits: bool | None
) -> None:
    job = ("-m", "gpt2-774m", "-b", "8", "-s", "1024", "-d", device)
    verdict = json.loads(run(capsys, "estimate", *job, "--json")[1])["verdict"]
    assert (verdict["device"], verdict["fits"]) == (device, fits)
    assert verdict["sentence"]
    if fits is not None:
        assert (verdict["headroom_bytes"] >= 0) == fits
    jobs = tmp_path / "jobs.jsonl"
    jobs.write_text(
        json.dumps({"model": "gpt2-774m", "micro_batch": 8, "sequence_length": 1024, "device": device})
    )
    assert json.loads(run(capsys, "estimate", "--jobs", str(jobs))[1])["verdict"] == verdict


def test_a_config_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "gpt2", "n_layer": 2}))
    status, out, _ = run(capsys, "estimate", "--model", str(path), "--json")
    assert status == 0
    assert json.loads(out)["job"]["config"]["n_layer"] == 2


def test_many_jobs_answer_in_order_and_a_bad_line_takes_none_with_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    jobs = tmp_path / "jobs.jsonl"
    lines = [
        json.dumps({"model": "gpt2-124m"}),
        "{",
        json.dumps({"model": "gpt2-124m", "micro_batch": -1}),
        "",
        json.dumps({"model": "gpt2-999m"}),
        json.dumps({"model": "gpt2-355m", "device": "abacus"}),
        json.dumps({"model": "gpt2-355m"}),
    ]
    jobs.write_text("\n".join(lines))
    status, out, _ = run(capsys, "estimate", "--jobs", str(jobs), "--detail", "fast")
    answers = [json.loads(line) for line in out.splitlines()]
    assert status == 1
    assert ["error" in answer for answer in answers] == [False, True, True, True, True, False]
    assert answers[2]["error"].startswith("micro_batch")
    assert "close to it" in answers[3]["error"]
    assert answers[5]["parameters"] == 354_823_168


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["estimate"], "model"),
        (["estimate", "-m", "gpt2-124m", "-b", "-4"], "micro_batch"),
        (["estimate", "-m", "gpt2-124m", "-b", "nan"], "micro_batch"),
        (["estimate", "-m", "gpt2-124m", "-s", "1e12"], "sequence_length"),
        (["estimate", "-m", "gpt2-124m", "-s", "4096"], "sequence_length"),
        (["estimate", "-m", "gpt3"], "model"),
        (["estimate", "-m", "nowhere/config.json"], "model"),
        (["estimate", "-m", "gpt2-124m", "-d", "abacus"], "device"),
        (["estimate", "-m", "gpt2-124m", "--capacity", "lots"], "capacity"),
        (
            ["estimate", "-m", "gpt2-124m", "--allocator", "expandable_segments:Perhaps"],
            "expandable_segments",
        ),
        (["estimate", "-m", "gpt2-124m", "--base-quantization", "nf4"], "base_quantization"),
        (["estimate", "-m", "gpt2-124m", "--engine", "guess"], "engine"),
        (["estimate", "-m", "gpt2-124m", "--capacity", ""], "capacity: is empty"),
        (["estimate", "--jobs", ""], "jobs: is empty"),
        (["fit", "--family", ""], "family: is empty"),
        (["estimate", "--jobs", "nowhere.jsonl"], "nowhere.jsonl"),
        (["guess"], "guess"),
        (["models", "zzzz"], "zzzz"),
        (["models", "none"], "none"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], argv: list[str], named: str
) -> None:
    status, out, err = run(capsys, *argv)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert named in err
    assert "Traceback" not in err


def test_a_config_that_is_no_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("{")
    status, _, err = run(capsys, "estimate", "-m", str(path))
    assert status == 2
    assert "config.json is not JSON" in err


def test_capacity_answers_as_the_machine_would(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("estimate", "-m", "gpt2-774m", "-b", "8", "-s", "1024", "-d", "h200", "--capacity")
    status, out, _ = run(capsys, *argv, "48GiB")
    assert status == 0
    assert "peak 44.44 GiB allocated" in out
    assert out.splitlines()[-1].startswith("Fits in 48.0 GiB, with ")
    status, out, _ = run(capsys, *argv, "40GiB")
    assert status == 1
    assert "step 1 fits, step 2 does not" in out
    assert "activations " in out
    assert re.search(
        r"^It needs 46\.\d GiB and 0\.\d+ GiB for the CUDA context: short by 6\.\d+ GiB\.$", out, re.M
    )
    assert "CUDA out of memory. Tried to allocate" in out
    status, out, _ = run(capsys, *argv, "40GiB", "--json")
    death = json.loads(out)["death"]
    assert (death["step"], death["phase"]) == (2, "forward")


@pytest.mark.parametrize("command", ["models", "devices"])
def test_lists(capsys: pytest.CaptureFixture[str], command: str) -> None:
    status, out, _ = run(capsys, command)
    assert status == 0
    assert len(out.splitlines()) > 15
    status, out, _ = run(capsys, command, "--json")
    assert json.loads(out)["schema"] == f"trainmem.{command}/1"


def test_explain_shows_every_term_with_its_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "explain", "-m", "gpt2-774m", "-b", "8", "-s", "1024", "-d", "h200")
    assert status == 0
    assert "774,030,080" in out
    status, out, _ = run(capsys, "explain", "-m", "gpt2-124m", "--json")
    explained = json.loads(out)
    assert explained["schema"] == "trainmem.explain/1"
    total = explained["whiteboard_bytes"] + sum(item["bytes"] for item in explained["gap"])
    assert total + explained["rest_bytes"] == explained["estimate"]["peak_allocated_bytes"]
    assert sum(explained["rest_by_bucket"].values()) == explained["rest_bytes"]


def test_the_lines_of_explain_add_up_to_its_last(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "explain", "-m", "gpt2-774m", "-b", "8", "-s", "1024", "-d", "h200")
    sizes = [int(size.replace(",", "")) for size in re.findall(r"GiB +([+-]?[0-9,]+) B ", out)]
    assert sum(sizes[:-1]) == sizes[-1] == 47_719_263_744
    assert "the rest, which no line names (weights +0.071" in out


UNKNOWN = {
    "model_type": "mystery",
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "vocab_size": 32000,
}


@pytest.mark.parametrize(
    ("capacity", "answer", "begins", "exits"),
    [
        ("24GiB", "probably_fits", "Probably fits in 24.0 GiB", 0),
        ("2600MiB", "unsure", "Too close to say for 2.54 GiB", 1),
        ("1200MiB", "probably_out_of_memory", "Probably does not fit in 1.17 GiB", 1),
    ],
)
def test_a_capacity_for_an_unknown_family_is_answered_by_the_sum_and_its_band(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, capacity: str, answer: str, begins: str, exits: int
) -> None:
    path = tmp_path / "a model" / "granite.json"
    path.parent.mkdir()
    path.write_text(json.dumps(UNKNOWN))
    argv = ("estimate", "-m", str(path), "-b", "2", "--precision", "bf16", "--capacity", capacity)
    status, out, err = run(capsys, *argv)
    assert (status, err) == (exits, "")
    assert any(line.startswith(begins) for line in out.splitlines())
    assert "too low and" in out
    named = shlex.quote(str(path))
    command = f"`trainmem trace --model {named} -b 2 --precision bf16`"
    assert f"{command} replays the real model's code, typically under 0.01% off" in out
    assert "exact" not in out
    found = json.loads(run(capsys, *argv, "--json")[1])
    assert (found["engine"], found["answer"], found["death"]) == ("whiteboard", answer, None)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"hidden_size": None, "vocab_size": None}, "config.hidden_size, config.vocab_size: missing"),
        (
            {"num_attention_heads": None},
            "config.num_attention_heads: missing, and without it there is no sum",
        ),
        ({"n_routed_experts": 64}, "config.n_routed_experts: 64 makes"),
        ({"is_encoder_decoder": True}, "config.is_encoder_decoder: True makes"),
        ({"num_hidden_layers": None, "n_layer": -4}, "config.n_layer: -4 is not a whole number"),
        ({"hidden_size": "wide"}, 'config.hidden_size: "wide" is not a whole number'),
    ],
)
def test_an_unknown_config_that_gives_no_sum_says_which_key(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, changes: dict[str, object], line: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(UNKNOWN | changes))
    status, out, err = run(capsys, "estimate", "-m", str(path), "--capacity", "24GiB")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"trainmem estimate: {line}")
    assert "trainmem trace" in err or "whole number" in err


def test_an_id_outside_the_catalogue_is_fetched(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {
        "model_type": "llama", "vocab_size": 4096, "hidden_size": 512, "intermediate_size": 1024,
        "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 4,
    }  # fmt: skip
    asked = []
    monkeypatch.setattr("trainmem.cli.jobs.fetch_config", lambda name: asked.append(name) or config)
    status, out, _ = run(capsys, "estimate", "--model", "someone/their-llama", "--json")
    assert (status, asked) == (0, ["someone/their-llama"])
    assert json.loads(out)["job"]["model"] == "someone/their-llama"
    assert run(capsys, "estimate", "--model", "Qwen/Qwen2.5-0.5B", "--json")[0] == 0
    assert len(asked) == 1


def test_a_reader_who_leaves_early_ends_it_quietly() -> None:
    command = f"{sys.executable} -m trainmem models | head -n 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False
    )
    assert (done.stderr, done.stdout.count("\n")) == ("", 1)


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "command", ["--help", "--version", "models", "estimate --help", "quiz --question states.kahan~5"]
)
def test_nobody_who_reads_is_no_fault(command: str, unbuffered: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "trainmem", *command.split()],
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        stdin=subprocess.DEVNULL,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_predicted_step_is_saved_as_a_snapshot(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "predicted.pickle"
    assert run(capsys, "estimate", "-m", "gpt2-124m", "-s", "64", "--snapshot", str(file))[0] == 0
    status, out, _ = run(capsys, "snapshot", str(file))
    assert status == 0
    assert out.startswith("The peak is")


def test_a_capacity_of_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "estimate", "-m", "gpt2-124m", "--capacity", "0")
    assert (status, err.count("\n")) == (2, 1)
    assert "capacity: 0 bytes" in err
    assert "24 bytes" in run(capsys, "estimate", "-m", "gpt2-124m", "--capacity", "24")[2]


def test_more_than_any_allocator_has_addresses_for(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "estimate", "-m", "llama3.1-8b", "-s", "131072", "--attention", "eager")
    assert status == 0
    assert "more than 32 TiB" in out
    assert "Does not fit" in out


def test_a_device_without_cuda_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no CUDA" in run(capsys, "estimate", "-m", "gpt2-124m", "--device", "m4-max")[1]


def test_the_last_halving_of_a_batch_names_nothing_that_nobody_gave(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ("-m", "gpt2-124m", "-b", "64", "--accumulation", "1048576", "--device", "t4")
    status, out, err = run(capsys, "estimate", *arguments)
    assert (status, err) == (0, "")
    assert "Does not fit on the NVIDIA T4" in out


def test_one_wrong_job_in_a_file_does_not_take_the_others(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "jobs.jsonl"
    good = '{"model": "gpt2-124m"}'
    wrong = ['{"model": "gpt2-124m", "micro_batch": 1%s}' % ("0" * 400), "[" * 9000, "nonsense", '{"x": NaN}']
    file.write_text("\ufeff" + "\n".join([good, *wrong, "", good]), encoding="utf-8")
    status, out, _ = run(capsys, "estimate", "--jobs", str(file), "--detail", "fast")
    answers = [json.loads(line) for line in out.splitlines()]
    assert status == 1
    assert ["error" in answer for answer in answers] == [False, True, True, True, True, False]
    assert run(capsys, "estimate", "--jobs", str(tmp_path))[2].startswith("trainmem estimate: jobs: ")


@pytest.mark.parametrize(
    "argv",
    [
        ["9" * 5000],
        ["estimate", "-m", "gpt2-124m", "--engine", "9" * 5000],
        ["estimate", "-m", "gpt2-124m", "--allocator", "9" * 5000],
        ["estimate", "-m", "gpt2-124m", "--snapshot", "9" * 5000],
        ["models", "9" * 5000],
        ["models", "a\nb\x1b[31m"],
        ["models", "\udcff"],
        ["snapshot", "9" * 5000],
        ["quiz", "--topic", "9" * 5000],
        ["quiz", "--progress", "9" * 5000],
        ["quiz", "--mode", "topic"],
    ],
)
def test_a_value_given_whole_does_not_bury_what_is_said(
    capsys: pytest.CaptureFixture[str], argv: list[str]
) -> None:
    status, _, err = run(capsys, *argv)
    assert (status, err.count("\n")) == (2, 1)
    assert len(err) < 500
    assert err.rstrip("\n").isprintable()
    assert "None" not in err


def test_a_file_that_is_not_there_is_named_without_a_number(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    missing = tmp_path / "nowhere" / "report.html"
    for argv in (
        ["snapshot", str(missing)],
        ["snapshot", "example:graph", "--html", str(missing)],
        ["estimate", "-m", "gpt2-124m", "-s", "32", "--snapshot", str(missing)],
    ):
        status, _, err = run(capsys, *argv)
        assert status == 2
        assert err.endswith("no such file or directory\n")
        assert "Errno" not in err


def test_the_models_have_a_heading_and_no_missing_id(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(capsys, "models")[1].splitlines()
    assert lines[0].split() == ["name", "parameters", "family", "Hugging", "Face", "id"]
    assert not [line for line in lines if line.endswith("None")]


def test_every_lever_says_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "estimate", "--help")[1]
    for said in ("micro batches before the optimizer steps", "a fused kernel", "stages that split"):
        assert said in " ".join(out.split())


def test_a_death_names_its_op_once(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "estimate", "-m", "gpt2-774m", "-b", "8", "--capacity", "24GiB")
    sentence = next(line for line in out.splitlines() if line.startswith("Does not fit in"))
    assert "Dies in step 1, forward of block" in sentence
    assert sentence.count("mlp.c_fc: addmm") == 1


def test_a_sum_promises_no_device(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(UNKNOWN | {"hidden_size": 4096, "num_hidden_layers": 12}))
    argv = ("estimate", "-m", str(path), "-d", "h200")
    status, out, _ = run(capsys, *argv)
    assert status == 0
    assert "Probably fits on the NVIDIA H200" in out
    assert "not for their typical one: on " in out
    assert out.splitlines()[-1].startswith("probably also fits on: ")
    # 61 GiB may be 121, which is more than 80
    assert "b200" in out
    assert "h100-80gb" not in out
    verdict = json.loads(run(capsys, *argv, "--json")[1])["verdict"]
    assert verdict["note"].startswith("No step was replayed")


_WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {library!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
from trainmem.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize("library", ["torch", "transformers"])
@pytest.mark.parametrize(
    "command", ["trace -m gpt2-124m", "estimate -m gpt2-124m --engine trace", "measure --list"]
)
def test_without_the_backend_the_line_that_installs_it_is_said(command: str, library: str) -> None:
    if command.startswith("measure") and library != "torch":
        return
    code = _WITHOUT.format(library=library)
    done = subprocess.run(
        [sys.executable, "-c", code, *command.split()], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.endswith(
        f"needs {library}, which is not installed; pip install '.[backend]' brings it\n"
    )


def test_lora_alone_is_its_rank(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("estimate", "-m", "qwen2.5-0.5b", "--precision", "bf16", "--detail", "fast", "--json")
    short, long = (json.loads(run(capsys, *argv, flag, "8")[1]) for flag in ("--lora", "--lora-rank"))
    assert short == long
    assert short["job"]["lora"]["rank"] == 8
