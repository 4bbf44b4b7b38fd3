"""How the autograd engine adds up gradients, and what that does to memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from trainmem_backend.trace.errors import TraceError

__all__ = ["ADD", "ENGINE_CODE", "adds_in_place", "last_reference"]

ADD = torch.ops.aten.add.Tensor
ENGINE_CODE = torch.autograd.graph._engine_run_backward.__code__
"""The frame right below an op that the engine itself calls, with no Python function in between."""


def _references(tensor: torch.Tensor) -> tuple[int, int]:
    return (
        torch._C._storage_Use_Count(tensor.untyped_storage()._cdata),
        tensor._use_count(),  # type: ignore[attr-defined]
    )


class _Probe(TorchDispatchMode):
    """Counts the references to a gradient that only the engine holds."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[tuple[int, int]] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is ADD and torch._C._current_graph_task_id() != -1:
            self.seen.append(_references(args[0]))
        return func(*args, **(kwargs or {}))


@cache
def last_reference() -> tuple[int, int]:
    """What `_references` reads when only the engine holds the gradient; it varies with PyTorch's version."""
    probe = _Probe()
    with FakeTensorMode(), probe, torch.enable_grad():
        leaf = torch.ones(2, requires_grad=True)
        shared = leaf * 1
        (shared * 2 + shared * 3).sum().backward()
    if not probe.seen:
        raise TraceError(
            f"torch {torch.__version__}: the autograd engine's additions are not visible to a dispatch mode"
        )
    return probe.seen[0]


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill one run of memory, in whatever order."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def adds_in_place(first: torch.Tensor, second: Any) -> bool:
    """Whether the engine would add ``second`` into ``first`` if both were plain CUDA tensors.

    torch/csrc/autograd/input_buffer.cpp, accumulate: in place when gradients of gradients are off, nobody
    else holds the first gradient or its storage (a view's base does), and it is dense. For tensor subclasses,
    fake tensors included, the engine never takes that path.
    """
    storage, tensor = _references(first)
    last_storage, last_tensor = last_reference()
    return (
        not torch.is_grad_enabled()
        and storage <= last_storage
        and tensor <= last_tensor
        and isinstance(second, torch.Tensor)
        and first.shape == second.shape
        and _is_dense(first)
    )
