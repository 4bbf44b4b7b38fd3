"""Many steps in a row: what goes wrong over time when one line of the training loop is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from trainmem.job import TrainingJob
from trainmem_backend.measure.device import Device
from trainmem_backend.measure.trial import Trial

__all__ = ["LOOPS", "measure_curve"]

_SEED = 1234


def measure_curve(trial: Trial, device: Device, build: Callable[[TrainingJob], Any]) -> dict[str, Any]:
    """Loss, allocated bytes and peak at the end of every step of one of `LOOPS`, on one fixed batch.

    Every trial starts from one seed, so that curves beside each other start from the same weights, up to the
    rounding of their precision.
    """
    assert trial.job is not None
    torch.manual_seed(_SEED)
    workload = build(trial.job)
    device.watch(workload)
    rate = trial.options.get("learning_rate")
    if rate is not None:
        for group in workload.optimizer.param_groups:
            group["lr"] = rate
    loop = LOOPS[trial.options["loop"]]
    losses: list[float] = []
    allocated: list[int] = []
    peaks: list[int] = []
    kept: list[torch.Tensor] = []
    stopped = None
    for _ in range(int(trial.options["steps"])):
        device.reset_peak()
        try:
            losses.append(loop(workload, kept))
        except torch.OutOfMemoryError as error:
            stopped = " ".join(str(error).split())[:300]
            break
        device.synchronize()
        allocated.append(device.allocated_bytes())
        peaks.append(device.peak_allocated_bytes())
    return {
        "loop": trial.options["loop"],
        "learning_rate": rate,
        "losses": [round(value, 6) for value in losses],
        "step_allocated_bytes": allocated,
        "step_peak_bytes": peaks,
        "ran_out_of_memory": stopped,
    }


def _train(workload: Any) -> torch.Tensor:
    loss: torch.Tensor = workload.forward()
    workload.backward(loss)
    workload.optimizer_step()
    return loss


def _right(workload: Any, kept: list[torch.Tensor]) -> float:
    loss = _train(workload)
    workload.zero_grad()
    return loss.item()


def _without_zero_grad(workload: Any, kept: list[torch.Tensor]) -> float:
    return _train(workload).item()


def _keeping_losses(workload: Any, kept: list[torch.Tensor]) -> float:
    loss = _train(workload)
    workload.zero_grad()
    kept.append(loss)
    return loss.item()


def _keeping_losses_of_an_evaluation(workload: Any, kept: list[torch.Tensor]) -> float:
    loss: torch.Tensor = workload.forward()
    kept.append(loss)
    return loss.item()


LOOPS: dict[str, Callable[[Any, list[torch.Tensor]], float]] = {
    "right": _right,
    "without_zero_grad": _without_zero_grad,
    "losses_append_loss": _keeping_losses,
    "evaluation_without_no_grad": _keeping_losses_of_an_evaluation,
}
"""The loops by name. In the third, ``loss`` has been through backward, so its saved tensors are gone and
only the number and the empty graph stay; in the fourth nothing ran backward and each loss keeps its
whole graph."""
