"""Values that no data decides: positions, offsets, counts and what a program computes of them.

Shapes follow from them: a table of relative positions is as long as the largest of them, an expert's slice as
its count. So an op whose inputs are all known and whose result is small is run twice, on the fake tensors and on
real copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.multiprocessing.reductions import StorageWeakRef

__all__ = ["KnownValues"]

_MOST_ELEMENTS = 1 << 14
"""Of a storage that is copied: masks over pairs of tokens are larger, lists of tokens are not."""

_LIKE = {
    getattr(torch.ops.aten, name)
    for name in ("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full")
}
"""They ask their first argument for its shape only."""


class _UnknownError(Exception):
    """An input's values are not known."""


@dataclass(frozen=True, slots=True)
class _Copy:
    """A storage's values; ``reference`` keeps its address from being used again."""

    reference: StorageWeakRef
    values: torch.Tensor
    is_assumed: bool


class KnownValues:
    """Real copies of small fake storages, by the storage's address."""

    def __init__(self) -> None:
        self._copies: dict[int, _Copy] = {}
        self._sweep_at = 256

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The tensor's values as a real tensor that shares memory with the copy; None where they are not known."""
        storage = tensor.untyped_storage()
        copy = self._copies.get(storage._cdata)
        # another dtype or size: what is there now is no element of what was copied
        if copy is None or copy.values.dtype is not tensor.dtype or copy.values.nbytes != storage.nbytes():
            return None
        with unset_fake_temporarily():
            return copy.values.as_strided(tensor.shape, tensor.stride(), int(tensor.storage_offset()))

    def is_assumed(self, tensor: torch.Tensor) -> bool:
        """Whether the values follow from something that was only taken as given."""
        copy = self._copies.get(tensor.untyped_storage()._cdata)
        return copy is not None and copy.is_assumed

    def set(self, tensor: torch.Tensor, values: torch.Tensor, *, is_assumed: bool) -> None:
        """``values``, real and of the tensor's shape, are what ``tensor`` holds."""
        storage = tensor.untyped_storage()
        with unset_fake_temporarily():
            copy = torch.zeros(storage.nbytes() // tensor.element_size(), dtype=tensor.dtype)
            copy.as_strided(tensor.shape, tensor.stride(), int(tensor.storage_offset())).copy_(values)
        self._copies[storage._cdata] = _Copy(StorageWeakRef(storage), copy, is_assumed)
        if len(self._copies) > self._sweep_at:
            self._copies = {key: one for key, one in self._copies.items() if not one.reference.expired()}
            self._sweep_at = 256 + 2 * len(self._copies)

    def saw(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> bool:
        """Follow an op that ran on fake tensors; whether what it made or wrote is known now."""
        if type(result) is FakeTensor and result.numel() > _MOST_ELEMENTS:
            return False
        written = _written(func)
        if written:
            return bool(self._copies) and self._followed_in_place(func, args, kwargs, written)
        results = result if isinstance(result, list | tuple) else (result,)
        new = [isinstance(each, FakeTensor) and self._is_new_and_small(each) for each in results]
        if not any(new) or not _follows_from_inputs(func):
            return False
        try:
            values, is_assumed = self._run(func, args, kwargs)
        except _UnknownError:
            return False
        values = values if isinstance(values, list | tuple) else (values,)
        for each, value, is_new in zip(results, values, new, strict=True):
            if is_new and each.shape == value.shape and value.device.type != "meta":
                self.set(each, value, is_assumed=is_assumed)
        return True

    def _is_new_and_small(self, tensor: FakeTensor) -> bool:
        storage = tensor.untyped_storage()
        return (
            storage.nbytes() <= _MOST_ELEMENTS * tensor.element_size() and storage._cdata not in self._copies
        )

    def _followed_in_place(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], written: Sequence[int | str]
    ) -> bool:
        """Write to the copies as well; what is written over with unknown values is no longer known."""
        try:
            if _follows_from_inputs(func):
                self._run(func, args, kwargs)
                return True
        except _UnknownError:
            pass
        for where in written:
            target = (
                kwargs.get(where) if isinstance(where, str) else args[where] if where < len(args) else None
            )
            for each in target if isinstance(target, list | tuple) else (target,):
                if isinstance(each, torch.Tensor):
                    self._copies.pop(each.untyped_storage()._cdata, None)
        return False

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, bool]:
        """The op on real values, and whether any of them is assumed."""
        fakes: list[torch.Tensor] = []
        if func.overloadpacket in _LIKE:
            with unset_fake_temporarily():
                args = (torch.empty(args[0].shape, dtype=args[0].dtype), *args[1:])
        real = self._real(args, fakes)
        named = {name: self._real(value, fakes) for name, value in kwargs.items()}
        try:
            with unset_fake_temporarily():
                return func(*real, **named), any(self.is_assumed(fake) for fake in fakes)
        except (RuntimeError, IndexError) as error:
            # a kernel that hosts do not have, or an index that assumed values put out of range
            raise _UnknownError from error

    def _real(self, value: Any, fakes: list[torch.Tensor]) -> Any:
        if isinstance(value, FakeTensor):
            known = self.of(value)
            if known is None:
                raise _UnknownError
            fakes.append(value)
            return known
        if type(value) is list or type(value) is tuple:
            return type(value)(self._real(item, fakes) for item in value)
        return value


@cache
def _written(func: Any) -> tuple[int | str, ...]:
    """The arguments that an op writes to: positions, and names of those that are given by name."""
    found: list[int | str] = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found.append(argument.name if argument.kwarg_only else position)
    return tuple(found)


@cache
def _follows_from_inputs(func: Any) -> bool:
    """Not random, and not whatever was in memory."""
    return torch.Tag.nondeterministic_seeded not in func.tags and "empty" not in func._schema.name
