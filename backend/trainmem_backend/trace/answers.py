"""What a fake tensor answers when the program asks for its value."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

__all__ = ["Answers"]

_ALL = {torch.ops.aten.all.default, torch.ops.aten.all.dim}
_SCALE = torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default


class Answers:
    """Harmless values: 1 for numbers, True for `all`, False for other bools, 0 for an overflow flag."""

    def __init__(self) -> None:
        self.asked = 0
        self._true: set[int] = set()
        self._zero: set[int] = set()

    def saw(self, func: Any, args: tuple[Any, ...], result: Any) -> None:
        """Remember results whose harmless value is not the usual one."""
        if func in _ALL:
            self._true.add(result.untyped_storage()._cdata)
        elif func is _SCALE:
            self._zero.add(args[1].untyped_storage()._cdata)

    def item(self, tensor: torch.Tensor) -> Any:
        """The value of a one-element tensor."""
        if not isinstance(tensor, FakeTensor):
            with unset_fake_temporarily():
                return tensor.item()
        self.asked += 1
        key = tensor.untyped_storage()._cdata
        if tensor.dtype is torch.bool:
            return key in self._true
        value = 0 if key in self._zero else 1
        return value if not tensor.dtype.is_floating_point else float(value)
