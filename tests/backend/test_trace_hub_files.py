"""Scripts that name a model of the Hub where it cannot be reached: nothing waits, and the catalogue has its config."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainmem.model.catalogue import find
from trainmem_backend.trace import hub_files
from trainmem_backend.trace.errors import TraceError
from trainmem_backend.trace.program import trace_script

torch = pytest.importorskip("torch")
from huggingface_hub import constants  # noqa: E402

pytestmark = pytest.mark.torch

SCRIPT = """
import torch
from transformers import AutoConfig, AutoModelForCausalLM
assert AutoConfig.from_pretrained("{model}").model_type == "gpt2"
model = AutoModelForCausalLM.from_pretrained("{model}").cuda()
optimizer = torch.optim.SGD(model.parameters())
ids = torch.zeros(1, 8, dtype=torch.long, device="cuda")
model(input_ids=ids, labels=ids).loss.backward()
optimizer.step()
"""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Addresses that were tried, in vain, with nothing in the cache."""
    tried: list[str] = []
    monkeypatch.setattr(hub_files, "_answers", tried.append)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return tried


def script(folder: Path, model: str) -> Path:
    path = folder / "train.py"
    path.write_text(SCRIPT.format(model=model))
    return path


def test_the_catalogue_has_the_config(tmp_path: Path, asked: list[str]) -> None:
    recording = trace_script(script(tmp_path, "openai-community/gpt2"), [], steps=1)
    assert recording.parameters == find("openai-community/gpt2").architecture().parameter_count
    assert sum("its config is taken from the catalogue" in note for note in recording.notes) == 1
    assert len(asked) == 1


def test_a_model_that_is_not_in_the_catalogue_fails_at_once(tmp_path: Path, asked: list[str]) -> None:
    with pytest.raises(TraceError, match=r"^train\.py, line 4: OSError: We couldn't connect to"):
        trace_script(script(tmp_path, "someone/unheard-of"), [], steps=1)
    assert len(asked) == 1
    assert not constants.is_offline_mode()


def test_where_the_hub_answers_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_files, "_answers", lambda address: True)
    notes: list[str] = []
    with hub_files.hub_or_catalogue(notes.append):
        assert not constants.is_offline_mode()
    assert notes == []


def test_an_address_that_is_none_does_not_answer() -> None:
    assert not hub_files._answers("https://[")
