"""`trainmem fit`: one object for programs, tables for people, one line for mistakes."""

import json
import re
import shlex

import pytest

from trainmem.cli import main
from trainmem.fit.methods import METHODS

PAGE = ["fit", "--device", "rtx-4090", "--detail", "fast"]
JOB = [*PAGE, "--model", "gpt2-774m", "-b", "8", "-s", "1024"]


def answered(capsys, *arguments):
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_device_as_json(capsys):
    found = answered(capsys, *PAGE)
    assert found["schema"] == "trainmem.fit/1"
    assert found["device"] == "rtx-4090"
    assert found["limit_bytes"] == found["usable_bytes"] - found["context_bytes"]
    assert [row["method"] for row in found["methods"]] == [method.key for method in METHODS]
    assert [limit["method"] for limit in found["lesson"]] == ["full", "lora", "qlora"]
    assert found["settings"] == {
        "micro_batch": 1,
        "sequence_length": 2048,
        "accumulation": 1,
        "attention": "sdpa",
        "checkpointing": "full",
        "loss": "standard",
        "family": "llama3",
    }
    for row in found["methods"]:
        largest = row["curve"]["largest"]
        if largest is not None:
            assert largest["peak_allocated_bytes"] <= found["limit_bytes"]
            assert largest["binding_bucket"]
            assert largest["peak_instant"]
    assert found["job"] is found["limits"] is found["rent_or_own"] is None


def test_a_job_as_json(capsys):
    found = answered(capsys, *JOB)
    assert found["job"]["model"] == "gpt2-774m"
    assert found["job"]["device"] == "rtx-4090"
    assert found["verdict"]["fits"] is False
    first = found["verdict"]["plans"][0]
    assert first["levers"][0]["lever"] == "checkpointing"
    assert first["levers"][0]["mathematics"] == "identical"
    assert first["levers"][0]["step_time"]["basis"] == "measured"
    assert found["limits"][0]["micro_batch"]["lever"] == "micro_batch"
    assert found["step_floor"]["seconds"] > 0
    assert found["measured_fraction"]["rows"] >= 5
    assert [offer["count"] for offer in found["rent_or_own"]["rented"]] == [1, 2, 4, 8]
    assert found["methods"] is None


def test_a_device_in_words(capsys):
    assert main([*PAGE, "--budget", "20GiB", "--family", "qwen2.5"]) == 0
    said = capsys.readouterr().out
    for method in METHODS:
        assert method.title in said
    assert "20.0 GiB on NVIDIA GeForce RTX 4090" in said
    assert "on Qwen2.5's curve" in said
    assert "about " in said
    assert "the same steps, predicted and measured:" in said
    assert "Reserved memory was left out (--detail fast)" in said


def test_a_job_in_words(capsys):
    assert main(JOB) == 0
    said = capsys.readouterr().out
    assert "does not fit on the GeForce RTX 4090" in said
    assert "1. " in said
    assert "1. 44.3 - 28.9 = 15.4 GiB, +25% step time" in said
    assert (
        "checkpointing (--checkpointing full): saves 28.9 GiB, +25% step time (measured: gpt2-774m x 8 x 1,024, H200"
        in said
    )
    assert "identical mathematics" in said
    assert "Not by step time but by what changes" in said
    assert re.search(r"took [\d.]+ to [\d.]+ times their least time", said)
    assert "largest micro batch" in said
    assert "a step takes at least" in said
    assert "4 x H100 80GB (SXM)" in said
    assert "the smallest single device in the list that runs it as set: h100-80gb" in said
    assert said.splitlines()[-1].startswith("Reserved memory was left out (--detail fast)")


def test_a_budget_without_a_device_says_whose_rates_it_takes(capsys):
    assumed = "a budget of 24.0 GiB, with the rates of the DGX Spark (say --device for another)"
    for flag in ("--budget", "--capacity"):
        assert main(["fit", "--detail", "fast", flag, "24GiB"]) == 0
        assert capsys.readouterr().out.startswith(f"{assumed}, of which")
    assert main(["fit", "--detail", "fast", "--capacity", "24GiB", *JOB[5:]]) == 0
    said = capsys.readouterr().out
    assert f"does not fit in {assumed}: its tensors" in said
    assert "s with the rates of the DGX Spark: " in said
    assert "24.0 GiB of the" not in said


def test_two_sizes_of_a_spark_are_explained(capsys):
    assert main(["fit", "--detail", "fast"]) == 0
    said = capsys.readouterr().out
    assert "(torch shows 120 GiB, and 10.0 GiB are left to the system)" in said.splitlines()[0]
    assert "It starts from 118 GiB, as is usually said of this device, not from 110 GiB." in said
    assert "fits, " in said
    assert " does not" in said


def test_help_tells_the_defaults_of_both_questions(capsys):
    with pytest.raises(SystemExit):
        main(["fit", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "without --model: micro_batch 1, sequence_length 2048, checkpointing full; with --model, defaults: "
        in said
    )


def test_of_an_unknown_model_every_word_is_of_the_sums_band(capsys, tmp_path):
    config = {"model_type": "granite", "hidden_size": 2048, "intermediate_size": 8192}
    config |= {"num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8}
    config |= {"vocab_size": 49155, "tie_word_embeddings": True, "max_position_embeddings": 4096}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    job = ["fit", "--model", str(path), "-b", "2", "-s", "2048", "--device"]
    assert main([*job, "h100-80gb"]) == 0
    said = capsys.readouterr().out
    first, *_, one, two, _, _, _, doubt, last = said.splitlines()
    assert "is too close to say on the H100" in first
    assert "which is too close to say: no step was replayed" in said
    assert "too close to say" in one
    assert "probably fits" in two
    assert doubt.startswith("No step was replayed, so this allows for the worst error")
    assert last == "the smallest single device in the list that probably runs it as set: h200"
    assert main([*job, "rtx-4090"]) == 0
    plans = [line for line in capsys.readouterr().out.splitlines() if line[:2] in ("1.", "2.", "3.")]
    assert all("too close to say, " in line or "probably fits, " in line for line in plans)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--device", "m3-ultra"], "device: m3-ultra has no CUDA"),
        (["--budget", "1MiB"], "budget: 1MiB is below the CUDA context"),
        (["--budget", "-3"], "budget: '-3' is not a size"),
        (["--family", "nope"], 'family: "nope" is not one of'),
        (["--family", "gpt2"], "sequence_length: 2,048 is longer"),
        (["--precision", "bf16"], "precision: bf16 needs --model"),
        (["--sharding", "fsdp2"], "sharding: fsdp2 needs --model"),
        (
            ["--sharding", "fsdp2", "--data-parallel", "2"],
            "sharding: fsdp2 needs --model, as without one every method is shown on one device; for example "
            "`trainmem fit --model llama3.1-8b --sharding fsdp2 --data-parallel 2 --device spark`",
        ),
        (["--model", "nope"], 'model: "nope" is not in the catalogue'),
        (["--model", "gpt2-124m", "-b", "0"], 'micro_batch: "0" is not a whole number'),
    ],
)
def test_wrong_input_is_one_line(capsys, arguments, said):
    assert main(["fit", "--detail", "fast", *arguments]) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert out.err.startswith(f"trainmem fit: {said}")
    assert out.err.count("\n") == 1


def test_every_plan_ends_with_the_command_that_answers_it(capsys):
    job = ["--model", "gpt2-774m", "-b", "8", "--budget", "12GiB"]
    assert main(["fit", *job]) == 0
    said = capsys.readouterr().out
    commands = [line.strip() for line in said.splitlines() if line.startswith("   trainmem estimate ")]
    assert len(commands) == sum(
        line[:2] in ("1.", "2.", "3.", "4.", "5.", "6.") for line in said.splitlines()
    )
    assert "   checkpointing (--checkpointing full): saves " in said
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0
    capsys.readouterr()
    assert main(["fit", *job, "--json"]) == 0
    levers = [
        lever for plan in json.loads(capsys.readouterr().out)["verdict"]["plans"] for lever in plan["levers"]
    ]
    assert all(lever["flags"].startswith("-") for lever in levers)
