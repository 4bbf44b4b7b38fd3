"""What a fake tensor answers when the program asks for its value."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.multiprocessing.reductions import StorageWeakRef

from trainmem_backend.trace.drawn_values import DrawnValues
from trainmem_backend.trace.known_values import KnownValues

__all__ = ["Answers"]

_aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class _Values:
    """What a storage's elements are taken to add up to; ``reference`` keeps its address from being used again.

    ``classes`` is how many different values they have, 0 where that is not known.
    """

    reference: StorageWeakRef
    total: int
    count: int
    classes: int = 0

    def at(self, position: int) -> int:
        """One element: the total is shared out evenly, in whole numbers."""
        return (position + 1) * self.total // self.count - position * self.total // self.count


class Answers:
    """Harmless values for tensors that have none, and their values for those that `KnownValues` follows.

    Alone, a number is 1 and a bool False. What is counted is taken to be all there: masks hide nothing, so
    `all` is True, as many are chosen as there are, and integers add up to how many they are. What is routed to
    one of several places, as tokens to experts, goes to each of them equally often. Nothing overflows: values are
    finite, for whoever asks as for a gradient scaler.
    """

    def __init__(self) -> None:
        self.asked = 0
        self._exact = KnownValues()
        self._known: dict[int, _Values] = {}
        self._drawn = DrawnValues()

    def saw(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Remember results whose values are known, or follow from what is taken as given."""
        if self._exact.saw(func, args, kwargs, result):
            return
        beyond = self._drawn.saw(func, args, result)
        if beyond is not None:
            self._set(result, beyond)
            return
        note = _NOTES.get(func)
        if note is not None:
            note(self, args, result)

    def item(self, tensor: torch.Tensor) -> Any:
        """The value of a one-element tensor."""
        if not isinstance(tensor, FakeTensor):
            with unset_fake_temporarily():
                return tensor.item()
        exact = self._asked_for(tensor)
        if exact is not None:
            with unset_fake_temporarily():
                return exact.item()
        known = self._of(tensor)
        value = (
            int(tensor.dtype is not torch.bool) if known is None else known.at(int(tensor.storage_offset()))
        )
        if tensor.dtype is torch.bool:
            return bool(value)
        return float(value) if tensor.dtype.is_floating_point else value

    def values(self, tensor: torch.Tensor) -> torch.Tensor:
        """A real tensor in the place of a fake one; all elements share one value unless more is known.

        No mode may be active.
        """
        exact = self._asked_for(tensor)
        if exact is not None:
            return exact
        known, usual = self._of(tensor), int(tensor.dtype is not torch.bool)
        if known is None or known.classes or not tensor.is_contiguous():
            return torch.full((), usual, dtype=tensor.dtype, device="cpu").expand(tuple(tensor.shape))
        start = int(tensor.storage_offset())
        each = [known.at(start + position) for position in range(tensor.numel())]
        return torch.tensor(each, dtype=tensor.dtype, device="cpu").view(tuple(tensor.shape))

    def sum(self, tensor: torch.Tensor) -> int:
        """What its elements add up to: how many of a mask are true."""
        exact = self._exact.of(tensor)
        if exact is not None:
            with unset_fake_temporarily():
                return int(exact.sum())
        known = self._of(tensor)
        if known is None or not known.count:
            return tensor.numel()
        return -(-known.total * tensor.numel() // known.count)

    def chosen(self, mask: torch.Tensor) -> int:
        """How many elements of ``mask`` the program finds to be true."""
        self._asked_for(mask)
        return min(mask.numel(), self.sum(mask))

    def _asked_for(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The tensor's values where they are known; counts what is made up instead."""
        exact = self._exact.of(tensor)
        if exact is None or self._exact.is_assumed(tensor):
            self.asked += 1
        return exact

    def _share_out(self, tensor: torch.Tensor, total: int) -> None:
        """A row of counts adds up to ``total``, as equal ones as can be."""
        self._set(tensor, total)
        known = self._known[_key(tensor)]
        with unset_fake_temporarily():
            counts = torch.tensor([known.at(position) for position in range(tensor.numel())])
        self._exact.set(tensor, counts, is_assumed=True)

    def _of(self, tensor: torch.Tensor) -> _Values | None:
        return self._known.get(_key(tensor))

    def _set(self, tensor: torch.Tensor, total: int, classes: int = 0) -> None:
        storage = tensor.untyped_storage()
        self._known[storage._cdata] = _Values(StorageWeakRef(storage), total, tensor.numel(), classes)


def _key(tensor: torch.Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key


def _all(answers: Answers, args: tuple[Any, ...], result: Any) -> None:
    answers._set(result, result.numel())


def _none(answers: Answers, args: tuple[Any, ...], result: Any) -> None:
    answers._set(result, 0)


def _equals_itself(answers: Answers, args: tuple[Any, ...], result: Any) -> None:
    """`isfinite`'s first half: it is false for a NaN only."""
    if args[0] is args[1]:
        answers._set(result, result.numel())


def _differs_from_itself(answers: Answers, args: tuple[Any, ...], result: Any) -> None:
    if args[0] is args[1]:
        answers._set(result, 0)


def _decided_by_one(answers: Answers, args: tuple[Any, ...], result: Any, value: bool) -> bool:
    """Nothing in one mask is nothing in its product with any other, everything in one is everything in a sum."""
    if result.is_floating_point() or (value and result.dtype is not torch.bool):
        return False
    for mask in args[:2]:
        exact = answers._exact.of(mask) if isinstance(mask, FakeTensor) else None
        if exact is None or exact.shape != result.shape:
            continue
        with unset_fake_temporarily():
            if bool((exact == value).all()):
                answers._exact.set(
                    result, torch.full_like(exact, value, dtype=result.dtype), is_assumed=False
                )
                return True
    return False


def _both(answers: Answers, args: tuple[Any, ...], result: Any) -> None:
    """The product of two masks."""
    if _decided_by_one(answers, args, result, False):
        return
    if result.dtype is torch.bool and isinstance(args[1], FakeTensor):
        masks = [answers._of(mask) for mask in args[:2]]
        if all(mask is not None and mask.count for mask in masks):
            share = math.prod(mask.total / mask.count for mask in masks if mask is not None)
            answers._set(result, round(share * result.numel()))


def _either(answers: Answers, args: tuple[Any, ...], result: Any) -> None:
    """Where one mask or another is true, of which no element has both."""
    if _decided_by_one(answers, args, result, True):
        return
    known = [answers._of(mask) if isinstance(mask, FakeTensor) else None for mask in args[:2]]
    if result.dtype is torch.bool and all(known):
        answers._set(result, min(result.numel(), sum(answers.sum(mask) for mask in args[:2])))


def _any(answers: Answers, args: tuple[Any, ...], result: Any) -> None:
    if answers._of(args[0]) is not None:
        answers._set(result, min(1, answers.sum(args[0])))


def _chosen(answers: Answers, args: tuple[Any, ...], result: Any) -> None:
    if answers._of(args[0]) is not None:
        answers._drawn.chosen(answers.sum(args[0]), args[1], result)


def _neither(answers: Answers, args: tuple[Any, ...], result: Any) -> None:
    """The opposite of a mask."""
    known = answers._of(args[0])
    if result.dtype is torch.bool and known is not None:
        answers._set(result, result.numel() - answers.sum(args[0]))


def _sum(answers: Answers, args: tuple[Any, ...], result: Any) -> None:
    if not args[0].is_floating_point():
        answers._set(result, answers.sum(args[0]))


def _no_overflow(answers: Answers, args: tuple[Any, ...], result: Any) -> None:
    answers._set(args[1], 0)


def _ones_scattered(answers: Answers, args: tuple[Any, ...], result: Any) -> None:
    answers._set(result, min(args[2].numel(), result.numel()))


def _counted(answers: Answers, args: tuple[Any, ...], result: Any) -> None:
    answers._share_out(result, args[0].numel())


def _cast(answers: Answers, args: tuple[Any, ...], result: Any) -> None:
    known = answers._of(args[0])
    if known is not None and isinstance(result, FakeTensor):
        answers._set(result, answers.sum(args[0]), known.classes)


def _routed(answers: Answers, args: tuple[Any, ...], result: Any) -> None:
    dim = args[2] if len(args) > 2 else -1
    # their values are of no use, only that they are one of so many
    answers._set(result[1], result[1].numel(), classes=args[0].shape[dim])


def _compared(compare: Callable[[Any, Any], bool]) -> Callable[[Answers, tuple[Any, ...], Any], None]:
    def note(answers: Answers, args: tuple[Any, ...], result: Any) -> None:
        known = answers._of(args[0])
        if isinstance(args[1], float) and not math.isfinite(args[1]):
            # any finite value compares alike
            answers._set(result, result.numel() if compare(1.0, args[1]) else 0)
            return
        if known is None or not known.count:
            return
        if known.classes:
            if compare is operator.eq:
                answers._set(result, -(-result.numel() // known.classes))
        else:
            answers._set(result, result.numel() if compare(known.total / known.count, args[1]) else 0)

    return note


_NOTES: dict[Any, Callable[[Answers, tuple[Any, ...], Any], None]] = {
    _aten.all.default: _all,
    _aten.all.dim: _all,
    _aten._is_all_true.default: _all,
    **{getattr(_aten, name).default: _none for name in ("isnan", "isinf", "isposinf", "isneginf")},
    _aten.eq.Tensor: _equals_itself,
    _aten.ne.Tensor: _differs_from_itself,
    **dict.fromkeys((_aten.mul.Tensor, _aten.logical_and.default, _aten.bitwise_and.Tensor), _both),
    **dict.fromkeys((_aten.logical_not.default, _aten.bitwise_not.default), _neither),
    **dict.fromkeys((_aten.logical_or.default, _aten.bitwise_or.Tensor), _either),
    _aten.any.default: _any,
    _aten.where.self: _chosen,
    _aten.sum.default: _sum,
    _aten.sum.dim_IntList: _sum,
    _aten.bincount.default: _counted,
    _aten.histc.default: _counted,
    _aten.scatter.value: _ones_scattered,
    _aten.scatter_.value: _ones_scattered,
    _aten._to_copy.default: _cast,
    _aten.topk.default: _routed,
    _aten._amp_foreach_non_finite_check_and_unscale_.default: _no_overflow,
    **{
        getattr(_aten, name).Scalar: _compared(getattr(operator, name))
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
    },
}
