"""Scripts around transformers' `Trainer` and `from_pretrained`, as most people write them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from trainmem.recording import Recording, StepFigures, counters, read_step
from trainmem_backend.trace.program import trace_script

pytestmark = pytest.mark.torch

CONFIG = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 1000,
}
PARAMETERS = 1_824_000
EXAMPLE = Path(__file__).parents[2] / "examples" / "trainer_qlora.py"
MODEL = f"model = AutoModelForCausalLM.from_config(AutoConfig.for_model('llama', **{CONFIG}))\n"
TRAIN = """
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments
class Data(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        ids = torch.randint(0, 1000, (128,))
        return {"input_ids": ids, "labels": ids}
Trainer(
    model=model,
    args=TrainingArguments(
        output_dir="out", per_device_train_batch_size=4, max_steps=4, report_to=[],
        **{"save_strategy": "no", **SETTINGS},
    ),
    train_dataset=Data(),
).train()
"""
LOAD = "model = AutoModelForCausalLM.from_pretrained('weights', {})\n"
QUANTIZED = (
    "from transformers import BitsAndBytesConfig\n"
    "from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training\n"
    "packed = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type='nf4', bnb_4bit_use_double_quant=True,\n"
    "    bnb_4bit_compute_dtype=torch.bfloat16)\n"
    + LOAD.format("quantization_config=packed, device_map={'': 0}")
    + "model = prepare_model_for_kbit_training(model)\n"
    "model = get_peft_model(model, LoraConfig(r=8, target_modules='all-linear', task_type='CAUSAL_LM'))\n"
)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trainer")
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **CONFIG))
    model.save_pretrained(folder / "weights")
    return folder


def steady(
    folder: Path, monkeypatch: pytest.MonkeyPatch, body: str, **settings: object
) -> tuple[Recording, StepFigures]:
    monkeypatch.chdir(folder)
    path = folder / "train.py"
    start = "import torch\nfrom transformers import AutoConfig, AutoModelForCausalLM\n"
    path.write_text(f"{start}SETTINGS = {settings}\n{body}{TRAIN}", encoding="utf-8")
    recording = trace_script(path, [], steps=3)
    return recording, read_step(recording, counters(recording), 3)


def test_trainer_with_its_own_defaults(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AMP and AdamW, by the whiteboard: fp32 weights and two fp32 states; nothing of the gradients between steps."""
    recording, step = steady(weights, monkeypatch, MODEL, bf16=True)
    assert recording.parameters == recording.trainable_parameters == PARAMETERS
    assert step.buckets_at_peak["weights"] == pytest.approx(4 * PARAMETERS, rel=0.01)
    assert step.buckets_at_peak["optimizer_state"] == pytest.approx(8 * PARAMETERS, rel=0.01)
    assert step.phases["start_bytes"] == step.phases["after_zero_grad_bytes"]
    assert step.phases["after_backward_bytes"] - step.phases["start_bytes"] >= 4 * PARAMETERS


def test_trainer_with_accumulation_and_checkpointing(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = steady(weights, monkeypatch, MODEL, bf16=True)[1]
    recording, step = steady(
        weights, monkeypatch, MODEL, bf16=True, gradient_checkpointing=True, gradient_accumulation_steps=3
    )
    assert [mark.micro for mark in recording.marks if mark.step == 3 and mark.phase == "forward"] == [0, 1, 2]
    assert step.buckets_at_peak["activations"] < plain.buckets_at_peak["activations"]


@pytest.mark.parametrize("where", ["'cuda'", "'auto'", "{'': 0}"])
def test_weights_that_are_read_onto_the_device(
    weights: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    recording, step = steady(
        weights, monkeypatch, LOAD.format(f"dtype=torch.bfloat16, device_map={where}"), bf16=True
    )
    assert recording.parameters == PARAMETERS
    assert step.buckets_at_peak["weights"] == pytest.approx(2 * PARAMETERS, rel=0.01)


def test_weights_that_bitsandbytes_packs_while_they_are_read(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a byte a weight in the blocks; embedding, head and norms were cast to fp32."""
    pytest.importorskip("bitsandbytes")
    pytest.importorskip("peft")
    recording, step = steady(weights, monkeypatch, QUANTIZED, bf16=True)
    adapters = recording.trainable_parameters
    assert 60_000 < adapters < 80_000
    assert recording.parameters == PARAMETERS + adapters
    plain = 2 * 1000 * 256 + 5 * 256
    packed = PARAMETERS - plain
    assert step.buckets_at_peak["weights"] == pytest.approx(packed // 2 + 4 * (plain + adapters), rel=0.05)


def test_weights_in_int8(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """bitsandbytes asks each product whether there are outliers: of values that are not there, none."""
    pytest.importorskip("bitsandbytes")
    body = QUANTIZED.partition("packed = ")[0] + (
        LOAD.format("quantization_config=BitsAndBytesConfig(load_in_8bit=True), device_map={'': 0}")
        + "model = get_peft_model(prepare_model_for_kbit_training(model),\n"
        "    LoraConfig(r=8, target_modules='all-linear', task_type='CAUSAL_LM'))\n"
    )
    recording, step = steady(weights, monkeypatch, body, bf16=True)
    adapters = recording.trainable_parameters
    plain = 2 * 1000 * 256 + 5 * 256
    assert step.buckets_at_peak["weights"] == pytest.approx(
        PARAMETERS - plain + 4 * (plain + adapters), rel=0.05
    )


def test_names_that_a_file_beside_the_script_imports(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`Trainer` is loaded when it is first named, by whichever file that is."""
    (weights / "loop.py").write_text(
        "import torch\ndef train(model, SETTINGS):\n" + TRAIN.replace("\n", "\n    "), encoding="utf-8"
    )
    monkeypatch.chdir(weights)
    path = weights / "train_elsewhere.py"
    path.write_text(
        "from transformers import AutoConfig, AutoModelForCausalLM\nfrom loop import train\n"
        f"{MODEL}train(model, dict(bf16=True))\n",
        encoding="utf-8",
    )
    assert trace_script(path, [], steps=2).parameters == PARAMETERS


@pytest.mark.parametrize(
    "body", [LOAD.format("dtype='auto', device_map='cuda'"), QUANTIZED], ids=["plain", "packed"]
)
def test_the_weights_themselves_are_not_needed(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    """A config.json alone gives the same events as the weights beside it, and the report says so."""
    with_weights, _ = steady(weights, monkeypatch, body, bf16=True)
    (tmp_path / "weights").mkdir()
    shutil.copy(weights / "weights" / "config.json", tmp_path / "weights")
    without, _ = steady(tmp_path, monkeypatch, body, bf16=True)
    assert without.events == with_weights.events
    assert [note for note in without.notes if "not on this machine" in note]
    assert not [note for note in with_weights.notes if "not on this machine" in note]


def test_the_weights_are_not_needed_where_the_auto_class_is_all_that_a_script_imports(tmp_path: Path) -> None:
    """In a process of its own: here other tests have long imported what transformers loads by name."""
    AutoConfig.for_model("llama", **CONFIG).save_pretrained(tmp_path / "weights")
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\nfrom transformers import AutoModelForCausalLM\n"
        "model = AutoModelForCausalLM.from_pretrained('weights').cuda()\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(3):\n"
        "    ids = torch.randint(0, 1000, (2, 64), device='cuda')\n"
        "    model(input_ids=ids, labels=ids).loss.backward()\n"
        "    optimizer.step()\n"
    )
    command = [sys.executable, "-m", "trainmem", "trace", "--json", script.name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["parameters"] == PARAMETERS


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, ["31.25 MiB"]),
        ({"eval_accumulation_steps": 4}, []),
        ({"prediction_loss_only": True}, []),
        ({"eval_strategy": "no"}, []),
    ],
    ids=["kept", "given to the host", "losses alone", "no evaluation"],
)
def test_logits_that_an_evaluation_keeps_are_said(
    weights: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, object], said: list[str]
) -> None:
    """64 rows of 128 tokens with 1,000 scores each, which accelerate hands on in fp32."""
    measured = "train_dataset=Data(), eval_dataset=Data(), compute_metrics=lambda found: {}"
    monkeypatch.setitem(globals(), "TRAIN", TRAIN.replace("train_dataset=Data()", measured))
    recording, _ = steady(weights, monkeypatch, MODEL, **{"bf16": True, "eval_strategy": "epoch", **settings})
    notes = [note for note in recording.notes if "evaluation keeps" in note]
    assert [size in note for note, size in zip(notes, said, strict=True)] == [True] * len(said)


def test_checkpoints_of_the_trainer_are_not_written(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording, _ = steady(
        tmp_path, monkeypatch, MODEL, bf16=True, tf32=True, save_steps=1, save_strategy="steps"
    )
    assert "save_pretrained wrote nothing" in recording.notes
    assert not list(tmp_path.rglob("*.safetensors"))


def test_generation_ends_at_its_longest(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a token ends a sequence depends on values; whether there is room for another does not."""
    body = (
        f"{MODEL}model.cuda()\nids = torch.randint(0, 1000, (2, 16), device='cuda')\n"
        "assert model.generate(ids, max_new_tokens=5, do_sample=True, eos_token_id=2).shape == (2, 21)\n"
    )
    steady(weights, monkeypatch, body, bf16=True)


def test_the_example(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(weights)
    recording = trace_script(EXAMPLE, ["weights"], steps=2)
    assert [mark.micro for mark in recording.marks if mark.step == 2 and mark.phase == "forward"] == [
        0,
        1,
        2,
        3,
    ]
    step = read_step(recording, counters(recording), 2)
    assert step.buckets_at_peak["weights"] < 4 * PARAMETERS
