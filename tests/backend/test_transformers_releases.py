"""Which jobs newer releases of transformers run otherwise than the tape."""

from __future__ import annotations

from typing import Any

import pytest
from transformers_releases import as_it_runs, differences

from trainmem.job import TrainingJob

pytestmark = pytest.mark.torch

EXPERTS, OPT, ROTARY, GEMMA, FSDP = "experts", "OPT", "rotary angles", "Gemma 2", "checkpointed block"


@pytest.mark.parametrize(
    ("model", "release", "words"),
    [
        ("gpt2-124m", (5, 24), []),
        ("gpt2-774m", (5, 24), []),
        ("llama3.1-8b", (5, 18), []),
        ("llama3.1-8b", (5, 19), [ROTARY]),
        ("opt-125m", (5, 17), []),
        ("opt-125m", (5, 24), [OPT]),
        ("gpt-oss-20b", (5, 24), [EXPERTS, ROTARY]),
        ("gemma2-2b", (5, 20), [ROTARY]),
        ("gemma2-2b", (5, 21), [ROTARY, GEMMA]),
    ],
)
def test_differences_by_release(model: str, release: tuple[int, int], words: list[str]) -> None:
    found = differences(TrainingJob(model=model), release)
    assert len(found) == len(words)
    assert all(word in text for word, text in zip(words, found, strict=True))


@pytest.mark.parametrize(("release", "count"), [((5, 22), 0), ((5, 23), 1)])
def test_checkpointing_under_fsdp(release: tuple[int, int], count: int) -> None:
    values: dict[str, Any] = {"checkpointing": "full", "sharding": {"mode": "fsdp2", "data_parallel": 4}}
    found = differences(TrainingJob.from_json({"model": "llama3.1-8b", **values}), release)
    assert len([text for text in found if FSDP in text]) == count


@pytest.mark.parametrize(("release", "attention"), [((5, 20), "sdpa"), ((5, 21), "eager")])
def test_gemma_2_as_it_runs(release: tuple[int, int], attention: str) -> None:
    assert as_it_runs(TrainingJob(model="gemma2-2b"), release).attention == attention
    assert as_it_runs(TrainingJob(model="gemma3-1b"), release).attention == "sdpa"
