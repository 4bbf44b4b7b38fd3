"""bf16 weights with fp32 master copies that the optimizer updates."""

from __future__ import annotations

from collections.abc import Iterable

import torch

__all__ = ["Masters"]


class Masters:
    """The master copies of a model's trainable parameters.

    With ``fp32_gradients`` each gradient is added to its master's as soon as backward has made it, and the
    bf16 one is dropped; else all gradients stay bf16 until the step, which converts them one by one.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], *, fp32_gradients: bool) -> None:
        self.pairs = [(p, torch.nn.Parameter(p.detach().float())) for p in parameters if p.requires_grad]
        self._hooks = []
        if fp32_gradients:
            for parameter, master in self.pairs:
                self._hooks.append(parameter.register_post_accumulate_grad_hook(_Mover(master)))

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """What the optimizer updates."""
        return [master for _, master in self.pairs]

    def take_gradients(self) -> None:
        """Convert the gradients that are still bf16."""
        for parameter, master in self.pairs:
            if parameter.grad is not None:
                master.grad = parameter.grad.float()
                parameter.grad = None

    @torch.no_grad()
    def copy_back(self) -> None:
        """Round the updated masters into the model."""
        for parameter, master in self.pairs:
            parameter.copy_(master)


class _Mover:
    """Adds a fresh gradient to its master's."""

    def __init__(self, master: torch.nn.Parameter) -> None:
        self.master = master

    def __call__(self, parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        if self.master.grad is None:
            self.master.grad = parameter.grad.float()
        else:
            self.master.grad.add_(parameter.grad)
        parameter.grad = None
