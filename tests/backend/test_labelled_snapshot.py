from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from collections import Counter  # noqa: E402

from trainmem.job import TrainingJob  # noqa: E402
from trainmem.snapshot.truth import LABELS  # noqa: E402
from trainmem_backend.measure.labelled_snapshot import CONFIGURATIONS, main, record  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

TINY = {
    "model_type": "gpt2",
    "n_layer": 2,
    "n_embd": 48,
    "n_head": 4,
    "n_positions": 32,
    "vocab_size": 640,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}


def moments(**changes: object) -> dict[str, Counter[str]]:
    job = TrainingJob.from_json(
        {"config": TINY, "sequence_length": 32, "micro_batch": 2, "device": "h200", **changes}
    )
    snapshot, facts = record(job, "cpu", steps=2)
    assert snapshot == b""
    assert len({mark["size"] for mark in facts["marks"]}) == len(facts["marks"])
    assert {label for mark in facts["marks"] for label in mark["labels"].values()} <= LABELS.keys()
    return {mark["moment"]: Counter(mark["labels"].values()) for mark in facts["marks"]}


def test_everything_is_named_when_it_is_there() -> None:
    found = moments()
    parameters = 2 + 2 * 12 + 2
    assert found["start of step 1"]["weight"] == parameters
    assert not found["start of step 1"]["state"]
    forward = found["forward 0 of step 1"]
    assert forward["saved_cast"] == 2 * 4 + 1
    assert forward["saved_logits"] == 1
    assert forward["saved"] > 20
    assert not forward["gradient"]
    backward = found["backward 0 of step 1"]
    assert backward["gradient"] == parameters
    assert not backward["saved"]
    assert found["optimizer 0 of step 1"]["state"] == 3 * parameters
    assert not found["zero_grad 0 of step 1"]["gradient"]
    assert found["start of step 2"]["state"] == 3 * parameters


def test_checkpointing_saves_less() -> None:
    plain, checkpointed = moments(), moments(checkpointing="full")
    assert checkpointed["forward 0 of step 1"]["saved"] < plain["forward 0 of step 1"]["saved"] / 2
    assert checkpointed["forward 0 of step 1"]["saved_cast"] == 1


def test_the_command_writes_the_labels_of_each_run(tmp_path, capsys) -> None:
    assert main([str(tmp_path), "--dry-run", "--only", "amp"]) == 0
    facts = json.loads((tmp_path / "amp.labels.json").read_text())
    assert facts["job"]["precision"] == "amp_bf16"
    assert "amp: 15 marks" in capsys.readouterr().out
    assert set(CONFIGURATIONS) == {"amp", "checkpointing", "eager", "adamw8bit", "lora"}
