"""What a fake tensor answers when the program asks for its value."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

__all__ = ["Answers"]

_ALL = {torch.ops.aten.all.default, torch.ops.aten.all.dim}
_SUM = torch.ops.aten.sum.default
_EQUALS = torch.ops.aten.eq.Scalar
_SCALE = torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default


class Answers:
    """Harmless values for tensors that have none.

    1 for numbers, False for bools, but True for `all` and for "as many as there are" (masks are taken to hide
    nothing), and 0 for the flag of a gradient scaler that overflowed.
    """

    def __init__(self) -> None:
        self.asked = 0
        self._true: set[int] = set()
        self._zero: set[int] = set()
        self._counts: dict[int, int] = {}

    def saw(self, func: Any, args: tuple[Any, ...], result: Any) -> None:
        """Remember results whose harmless value is not the usual one."""
        if func in _ALL:
            self._true.add(_key(result))
        elif func is _SUM and not args[0].is_floating_point():
            self._counts[_key(result)] = args[0].numel()
        elif func is _EQUALS and self._counts.get(_key(args[0])) == args[1]:
            self._true.add(_key(result))
        elif func is _SCALE:
            self._zero.add(_key(args[1]))

    def item(self, tensor: torch.Tensor) -> Any:
        """The value of a one-element tensor."""
        if not isinstance(tensor, FakeTensor):
            with unset_fake_temporarily():
                return tensor.item()
        self.asked += 1
        key = _key(tensor)
        if tensor.dtype is torch.bool:
            return key in self._true
        value = 0 if key in self._zero else 1
        return value if not tensor.dtype.is_floating_point else float(value)


def _key(tensor: torch.Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key
