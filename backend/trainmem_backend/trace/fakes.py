"""Results of ops on fake tensors, remembered by the shapes that go in.

A training step runs the same few ops on the same few shapes thousands of times. `FakeTensorMode` works each out
in about a quarter of a millisecond; what an op makes of given shapes is noted here at its first run and made
again without asking.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch._meta_registrations
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

__all__ = ["FakeKernels", "hinting_at_cuda"]

_CPU = torch.device("cpu")
_NEVER = {
    torch.ops.aten.lift_fresh.default,
    torch.ops.aten.resize_.default,
    torch.ops.aten.set_.source_Tensor,
    torch.ops.aten._local_scalar_dense.default,
}


@contextlib.contextmanager
def hinting_at_cuda(is_device: Callable[[torch.Tensor], bool]) -> Iterator[None]:
    """Fake kernels that differ from device to device take the tensors of ours for CUDA's inside."""
    own = torch._meta_registrations.device_hint

    def hint(tensor: torch.Tensor) -> str:
        kind: str = "cuda" if is_device(tensor) else own(tensor)
        return kind

    with mock.patch.object(torch._meta_registrations, "device_hint", hint):
        yield


@dataclass(frozen=True, slots=True)
class _Made:
    """One result: a new tensor, or a view of an argument (``of``), or the argument itself (``shape`` None)."""

    shape: tuple[int, ...] | None
    stride: tuple[int, ...]
    dtype: torch.dtype | None
    offset: int
    of: int


class FakeKernels:
    """Runs ops on fake tensors of one mode."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self.mode = mode
        self._known: dict[Any, Any] = {}

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The op's results."""
        tensors: list[Any] = []
        key = self._key(func, args, kwargs, tensors)
        if key is None:
            return func(*args, **kwargs)
        plan = self._known.get(key)
        if plan is None:
            result = func(*args, **kwargs)
            self._known[key] = self._note(tensors, result)
            return result
        if plan is _UNKNOWABLE:
            return func(*args, **kwargs)
        with torch._C._DisableTorchDispatch():
            return self._make(plan, tensors)

    def _key(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Any]) -> Any:
        """The op, its tensors' shapes and its other arguments; None where that does not decide the result."""
        if func in _NEVER or torch.Tag.inplace_view in func.tags:
            return None
        parts: list[Any] = [func]
        if not _describe(args, parts, tensors):
            return None
        for name, value in kwargs.items():
            parts.append(name)
            if not _describe((value,), parts, tensors):
                return None
        if not tensors:
            return None
        try:
            key = tuple(parts)
            hash(key)
        except TypeError:
            return None
        return key

    def _note(self, tensors: list[Any], result: Any) -> Any:
        """What the op made of its arguments."""
        storages = {t.untyped_storage()._cdata: n for n, t in reversed(list(enumerate(tensors)))}
        try:
            return _noted(result, tensors, storages)
        except (_UnknowableError, TypeError):
            return _UNKNOWABLE

    def _make(self, plan: Any, tensors: list[Any]) -> Any:
        if type(plan) is _Made:
            if plan.shape is None:
                return tensors[plan.of]
            if plan.of >= 0:
                element = torch.empty((0,), dtype=plan.dtype, device="meta")
                element.set_(tensors[plan.of].untyped_storage(), plan.offset, plan.shape, plan.stride)
            else:
                element = torch.empty_strided(plan.shape, plan.stride, dtype=plan.dtype, device="meta")
            return FakeTensor(self.mode, element, _CPU)
        if isinstance(plan, list | tuple):
            return type(plan)(self._make(item, tensors) for item in plan)
        return plan


def _noted(value: Any, tensors: list[Any], storages: dict[int, int]) -> Any:
    if isinstance(value, FakeTensor):
        for number, tensor in enumerate(tensors):
            if tensor is value:
                return _Made(None, (), None, 0, number)
        if value.fake_device.type != "cpu" or value.layout is not torch.strided or value.constant is not None:
            raise _UnknowableError
        of = storages.get(value.untyped_storage()._cdata, -1)
        return _Made(tuple(value.shape), value.stride(), value.dtype, int(value.storage_offset()), of)
    if isinstance(value, torch.Tensor):
        raise _UnknowableError
    if isinstance(value, list | tuple):
        return type(value)(_noted(item, tensors, storages) for item in value)
    return value


class _UnknowableError(Exception):
    """A result that shapes do not decide."""


_UNKNOWABLE = object()


def _describe(values: Any, parts: list[Any], tensors: list[Any]) -> bool:
    for value in values:
        kind = type(value)
        if kind is FakeTensor:
            parts.append((value.shape, value.stride(), value.dtype, value.storage_offset()))
            tensors.append(value)
        elif kind is list or kind is tuple:
            parts.append(len(value))
            if not _describe(value, parts, tensors):
                return False
        elif isinstance(value, torch.Tensor):
            return False
        else:
            # 1, 1.0 and True are equal but promote differently.
            parts.append(kind)
            parts.append(value)
    return True
