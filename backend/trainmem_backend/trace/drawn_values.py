"""How many normally distributed values lie beyond a bound, for code that draws them again until none does.

`torch.nn.init.trunc_normal_` of torch 2.12 and newer is such code: how often it goes round, and so how much it
allocates, follows from how many are expected to be left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef

__all__ = ["DrawnValues"]

_aten = torch.ops.aten

_BEYOND: dict[Any, Callable[[NormalDist, float], float]] = {
    **dict.fromkeys((_aten.lt.Scalar, _aten.le.Scalar), NormalDist.cdf),
    **dict.fromkeys((_aten.gt.Scalar, _aten.ge.Scalar), lambda drawn, bound: 1.0 - drawn.cdf(bound)),
}


@dataclass(frozen=True, slots=True)
class _Drawn:
    """The distribution of a storage's values, and how many of them have it; the others are within bounds.

    ``reference`` keeps the storage's address from being used again.
    """

    reference: StorageWeakRef
    distribution: NormalDist
    count: int


class DrawnValues:
    """What was drawn from normal distributions, by the storage's address."""

    def __init__(self) -> None:
        self._drawn: dict[int, _Drawn] = {}
        self._sweep_at = 256

    def saw(self, func: Any, args: tuple[Any, ...], result: Any) -> int | None:
        """Follow an op; where it compares drawn values with a number, how many are expected to be true."""
        if func is _aten.normal_.default:
            mean, std = (*args[1:], *(0.0, 1.0)[len(args) - 1 :])[:2]
            self._set(result, NormalDist(mean, std), result.numel())
        elif not self._drawn:
            return None
        elif func in _BEYOND:
            drawn = self._drawn.get(_key(args[0]))
            if drawn is not None:
                return round(drawn.count * _BEYOND[func](drawn.distribution, args[1]))
        elif func is not _aten.where.self and func._schema.is_mutable and isinstance(args[0], FakeTensor):
            self._drawn.pop(_key(args[0]), None)
        return None

    def chosen(self, chosen: int, fresh: Any, result: FakeTensor) -> None:
        """``result`` has so many values of ``fresh``, and for the rest ones that are within bounds."""
        drawn = self._drawn.get(_key(fresh)) if isinstance(fresh, FakeTensor) else None
        if drawn is not None:
            self._set(result, drawn.distribution, chosen)

    def _set(self, tensor: FakeTensor, distribution: NormalDist, count: int) -> None:
        storage = tensor.untyped_storage()
        self._drawn[storage._cdata] = _Drawn(StorageWeakRef(storage), distribution, count)
        if len(self._drawn) > self._sweep_at:
            self._drawn = {key: each for key, each in self._drawn.items() if not each.reference.expired()}
            self._sweep_at = 256 + 2 * len(self._drawn)


def _key(tensor: torch.Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key
