"""The pass that reads the counters, on the CPU with a device whose counters are made up."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from trainmem.job import TrainingJob
from trainmem_backend.measure.device import PretendedDevice
from trainmem_backend.measure.tasks.step import memory_pass
from trainmem_backend.workload import Workload, build_workload

pytestmark = pytest.mark.torch

CONFIG = {"model_type": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 64, "n_positions": 32}


def fp16_workload(overflows: Callable[[int], bool]) -> tuple[Workload, PretendedDevice]:
    """A small model in fp16, with gradients that are not finite in the steps that ``overflows`` names."""
    job = TrainingJob(config=CONFIG, micro_batch=1, sequence_length=8, precision="amp_fp16")
    workload = build_workload(job, device="cpu")
    device = PretendedDevice()
    device.watch(workload)
    forward, steps = workload.forward, iter(range(1000))

    def overflowing() -> torch.Tensor:
        return forward() * (torch.inf if overflows(next(steps)) else 1)

    workload.forward = overflowing  # type: ignore[method-assign]
    return workload, device


def test_a_step_that_the_loss_scaler_skips_is_taken_again() -> None:
    measured = memory_pass(*fp16_workload(lambda step: step in (0, 1, 3)))
    assert (measured["steps"], measured["skipped_steps"]) == (3, 3)
    first, steady = measured["first_step"], measured["steady_step"]
    state = measured["dtypes"]["optimizer_state"]["float32"]
    assert first["after_optimizer_bytes"] - first["after_backward_bytes"] >= state > 0
    assert steady["start_bytes"] - first["start_bytes"] >= state
    assert "skipped_steps" not in memory_pass(*fp16_workload(lambda step: False))


def test_gradients_that_never_become_finite_are_an_error() -> None:
    with pytest.raises(ValueError, match="precision: the loss scaler skipped 20 steps"):
        memory_pass(*fp16_workload(lambda step: True))
