"""The optimizer of a job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch

from trainmem.job import JobError, TrainingJob
from trainmem_backend.workload.rounding import RoundedAdamW, RoundedSGD, Rounding

__all__ = ["Chained", "Stepper", "build_optimizer"]

_LEARNING_RATE = 1e-5


class Stepper(Protocol):
    """What a training step needs of an optimizer."""

    def step(self) -> Any:
        """Update the parameters."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""


class Chained:
    """Several optimizers stepped as one."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.optimizers = optimizers

    @property
    def state(self) -> dict[Any, Any]:
        """The states of all of them."""
        return {key: value for optimizer in self.optimizers for key, value in optimizer.state.items()}

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all of them, whose gradients a loss scaler unscales."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def step(self) -> None:
        """Step each in turn."""
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of all."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=set_to_none)


def build_optimizer(job: TrainingJob, parameters: Iterable[torch.nn.Parameter]) -> Any:
    """The job's optimizer over the trainable ones of ``parameters``.

    Muon takes the matrices and AdamW the rest, as its authors say; 8-bit ones are bitsandbytes'. Adapters are
    fp32, so that no precision rounds their updates.
    """
    trained: list[Any] = [p for p in parameters if p.requires_grad]
    rate = _LEARNING_RATE
    if job.lora is None and job.precision in ("bf16_kahan", "bf16_stochastic"):
        return _rounded(job, trained)
    match job.optimizer:
        case "adamw":
            return torch.optim.AdamW(trained, lr=rate)
        case "adamw_fused":
            return torch.optim.AdamW(trained, lr=rate, fused=True)
        case "adamw_loop":
            return torch.optim.AdamW(trained, lr=rate, foreach=False)
        case "sgd":
            return torch.optim.SGD(trained, lr=rate)
        case "sgd_momentum":
            return torch.optim.SGD(trained, lr=rate, momentum=0.9)
        case "adafactor":
            return torch.optim.Adafactor(trained, lr=rate)
        case "muon":
            matrices = [p for p in trained if p.ndim == 2]
            rest = [p for p in trained if p.ndim != 2]
            optimizers: list[torch.optim.Optimizer] = []
            if matrices:
                optimizers.append(torch.optim.Muon(matrices, lr=rate))
            if rest:
                optimizers.append(torch.optim.AdamW(rest, lr=rate))
            return Chained(optimizers)
    import bitsandbytes as bnb

    match job.optimizer:
        case "adamw8bit":
            return bnb.optim.AdamW8bit(trained, lr=rate)
        case "paged_adamw8bit":
            return bnb.optim.PagedAdamW8bit(trained, lr=rate)
        case "lion8bit":
            return bnb.optim.Lion8bit(trained, lr=rate)
    raise JobError(f"optimizer: {job.optimizer} has no implementation here")


def _rounded(job: TrainingJob, parameters: list[Any]) -> torch.optim.Optimizer:
    rounding: Rounding = "kahan" if job.precision == "bf16_kahan" else "stochastic"
    if job.optimizer in ("adamw", "adamw_fused", "adamw_loop"):
        return RoundedAdamW(parameters, lr=_LEARNING_RATE, rounding=rounding)
    if job.optimizer in ("sgd", "sgd_momentum"):
        momentum = 0.9 if job.optimizer == "sgd_momentum" else 0.0
        return RoundedSGD(parameters, lr=_LEARNING_RATE, momentum=momentum, rounding=rounding)
    raise JobError(
        f"optimizer: {job.optimizer} has no {job.precision} form; allowed are adamw, adamw_fused, "
        "adamw_loop, sgd and sgd_momentum"
    )
