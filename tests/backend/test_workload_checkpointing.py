"""Segments of blocks under one checkpoint compute what the blocks compute one by one."""

from __future__ import annotations

import pytest
import torch
from small_models import CAUSAL, small_job

from trainmem.job import TrainingJob
from trainmem_backend.trace.libraries import quiet_libraries
from trainmem_backend.workload import build_workload

pytestmark = pytest.mark.torch

LAYERS = ("n_layer", "n_layers", "num_layers", "num_hidden_layers")
TUPLES = ("bamba", "bloom", "falcon", "gpt_neo", "mpt")
TENSORS = ("gemma2", "gpt2", "llama", "opt", "mixtral")


def loss_and_gradients(job: TrainingJob) -> list[torch.Tensor]:
    torch.manual_seed(0)
    with quiet_libraries():
        workload = build_workload(job, device="cpu")
        loss = workload.forward()
        workload.backward(loss)
    gradients = [p.grad for p in workload.model.parameters() if p.grad is not None]
    return [loss.detach(), *gradients]


@pytest.mark.parametrize("family", [*TUPLES, *TENSORS])
def test_a_segment_computes_what_its_blocks_do(family: str) -> None:
    config = {"model_type": family, **CAUSAL[family]}
    key = next(name for name in LAYERS if name in config)
    if family not in ("bamba", "gpt_neo"):
        config[key] = 3
    job = {**small_job(family, precision="fp32").to_json(), "config": config}
    plain = loss_and_gradients(TrainingJob.from_json(job))
    segments = loss_and_gradients(TrainingJob.from_json({**job, "checkpointing": "sqrt"}))
    assert len(plain) == len(segments) > 5
    for one, other in zip(plain, segments, strict=True):
        torch.testing.assert_close(one, other)
