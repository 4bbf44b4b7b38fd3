"""Optimizers for weights that are bf16 and nothing else.

A bf16 weight has 8 bits of significand, so a plain step smaller than 1/512 of the weight is lost. Kahan
summation keeps what was lost in a second bf16 tensor (Zamirai et al. 2020, "Revisiting BFloat16 Training",
algorithm 1); stochastic rounding is right on average and keeps nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch

__all__ = ["RoundedAdamW", "RoundedSGD", "Rounding", "round_stochastically"]

Rounding = Literal["kahan", "stochastic"]


def round_stochastically(values: torch.Tensor) -> torch.Tensor:
    """fp32 values as bf16, up or down with the odds that make the mean exact.

    bf16 is the upper half of an fp32 word, so noise in the lower 16 bits carries into it with those odds.
    """
    noise = torch.randint_like(values, 1 << 16, dtype=torch.int32)
    bits = noise.add_(values.view(torch.int32)).bitwise_and_(-65536)
    return bits.view(torch.float32).to(torch.bfloat16)


class _Rounded(torch.optim.Optimizer):
    """An optimizer that computes an update for each parameter and adds it without losing small steps."""

    def __init__(self, parameters: Iterable[Any], defaults: dict[str, Any]) -> None:
        if defaults["rounding"] not in ("kahan", "stochastic"):
            raise ValueError(f"rounding: {defaults['rounding']!r} is not one of kahan, stochastic")
        super().__init__(parameters, defaults)

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                update = self._update(parameter, group)
                if group["rounding"] == "kahan":
                    self._add_compensated(parameter, update)
                else:
                    parameter.copy_(round_stochastically(update.float().add_(parameter)))
                del update
        return loss

    def _add_compensated(self, parameter: torch.Tensor, update: torch.Tensor) -> None:
        state = self.state[parameter]
        if "compensation" not in state:
            state["compensation"] = torch.zeros_like(parameter)
        compensation = state["compensation"]
        compensation.add_(update)
        before = parameter.clone()
        parameter.add_(compensation)
        compensation.add_(before.sub_(parameter))


class RoundedSGD(_Rounded):
    """SGD with momentum."""

    def __init__(
        self, parameters: Iterable[Any], *, lr: float, momentum: float = 0.0, rounding: Rounding = "kahan"
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "rounding": rounding})

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
        gradient = parameter.grad
        assert gradient is not None
        if group["momentum"]:
            state = self.state[parameter]
            if "momentum" not in state:
                state["momentum"] = torch.zeros_like(parameter)
            gradient = state["momentum"].mul_(group["momentum"]).add_(gradient)
        update: torch.Tensor = gradient * -group["lr"]
        return update


class RoundedAdamW(_Rounded):
    """AdamW; its two moments are bf16 like the weights."""

    def __init__(
        self,
        parameters: Iterable[Any],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        rounding: Rounding = "kahan",
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "rounding": rounding}
        super().__init__(parameters, defaults)

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
        gradient = parameter.grad
        assert gradient is not None
        state = self.state[parameter]
        if "step" not in state:
            state["step"] = 0
            state["mean"] = torch.zeros_like(parameter)
            state["square"] = torch.zeros_like(parameter)
        state["step"] += 1
        first, second = group["betas"]
        state["mean"].lerp_(gradient, 1 - first)
        state["square"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        size = group["lr"] / (1 - first ** state["step"])
        scale = (1 - second ** state["step"]) ** 0.5
        denominator = state["square"].sqrt().div_(scale).add_(group["eps"])
        update = torch.div(state["mean"], denominator).mul_(-size)
        return update.add_(parameter, alpha=-group["lr"] * group["weight_decay"])
