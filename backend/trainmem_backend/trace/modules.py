"""Modules and parameters of fake tensors: building them on the host and moving them to the virtual device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

__all__ = ["virtual_modules"]


def _apply(module: torch.nn.Module, fn: Callable[[Any], Any], recurse: bool = True) -> torch.nn.Module:
    """`torch.nn.Module._apply` for fake parameters, which PyTorch would try to swap.

    A parameter stays the same object, as it does on a GPU: optimizers and tied modules hold on to it.
    """
    if recurse:
        for child in module.children():
            child._apply(fn)
    for name, parameter in module._parameters.items():
        if parameter is None:
            continue
        with torch.no_grad():
            moved = fn(parameter)
            if moved is not parameter:
                module._parameters[name] = _moved(parameter, moved)
            if parameter.grad is not None:
                gradient = fn(parameter.grad)
                if gradient is not parameter.grad:
                    parameter.grad.data = gradient
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = fn(buffer)
    return module


def _moved(parameter: torch.nn.Parameter, moved: torch.Tensor) -> torch.nn.Parameter:
    if isinstance(moved, torch.nn.Parameter):
        return moved
    # into "meta", and out of it as `to_empty` takes it, a parameter is a new one in PyTorch as well
    if type(parameter) is type(moved) and "meta" not in (parameter.device.type, moved.device.type):
        parameter.data = moved
        return parameter
    return torch.nn.Parameter(moved, parameter.requires_grad)


@contextlib.contextmanager
def virtual_modules(fake_mode: FakeTensorMode) -> Iterator[None]:
    """Parameters are fake wherever they are made, and modules can move to the virtual device."""
    create = torch.nn.Parameter.__new__

    def new(
        cls: type[torch.nn.Parameter], data: torch.Tensor | None = None, requires_grad: bool = True
    ) -> torch.nn.Parameter:
        if data is not None and type(data) is torch.Tensor and data.device.type == "cpu":
            data = fake_mode.from_tensor(data.detach())
        parameter: torch.nn.Parameter = create(cls, data, requires_grad)
        return parameter

    with (
        mock.patch.object(torch.nn.Module, "_apply", _apply),
        mock.patch.object(torch.nn.Parameter, "__new__", new),
    ):
        yield
