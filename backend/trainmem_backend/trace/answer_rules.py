"""What follows for a result from what is taken as given of its inputs: masks hide nothing, nothing overflows."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

if TYPE_CHECKING:
    from trainmem_backend.trace.answers import Answers

__all__ = ["RULES"]

_aten = torch.ops.aten


def _all(answers: Answers, args: tuple[Any, ...], result: Any) -> None:
    answers.take(result, result.numel())


def _none(answers: Answers, args: tuple[Any, ...], result: Any) -> None:
    answers.take(result, 0)


def _equals_itself(answers: Answers, args: tuple[Any, ...], result: Any) -> None:
    """`isfinite`'s first half: it is false for a NaN only."""
    if args[0] is args[1]:
        answers.take(result, result.numel())


def _differs_from_itself(answers: Answers, args: tuple[Any, ...], result: Any) -> None:
    if args[0] is args[1]:
        answers.take(result, 0)


def _decided_by_one(answers: Answers, args: tuple[Any, ...], result: Any, value: bool) -> bool:
    """Nothing in one mask is nothing in its product with any other, everything in one is everything in a sum."""
    if result.is_floating_point() or (value and result.dtype is not torch.bool):
        return False
    for mask in args[:2]:
        exact = answers.exact.of(mask) if isinstance(mask, FakeTensor) else None
        if exact is None or exact.shape != result.shape:
            continue
        with unset_fake_temporarily():
            if bool((exact == value).all()):
                answers.exact.set(result, torch.full_like(exact, value, dtype=result.dtype), is_assumed=False)
                return True
    return False


def _both(answers: Answers, args: tuple[Any, ...], result: Any) -> None:
    """The product of two masks."""
    if _decided_by_one(answers, args, result, False):
        return
    if result.dtype is torch.bool and isinstance(args[1], FakeTensor):
        masks = [answers.known(mask) for mask in args[:2]]
        if all(mask is not None and mask.count for mask in masks):
            share = math.prod(mask.total / mask.count for mask in masks if mask is not None)
            answers.take(result, round(share * result.numel()))


def _either(answers: Answers, args: tuple[Any, ...], result: Any) -> None:
    """Where one mask or another is true, of which no element has both."""
    if _decided_by_one(answers, args, result, True):
        return
    known = [answers.known(mask) if isinstance(mask, FakeTensor) else None for mask in args[:2]]
    if result.dtype is torch.bool and all(known):
        answers.take(result, min(result.numel(), sum(answers.sum(mask) for mask in args[:2])))


def _any(answers: Answers, args: tuple[Any, ...], result: Any) -> None:
    if answers.known(args[0]) is not None:
        answers.take(result, min(1, answers.sum(args[0])))


def _chosen(answers: Answers, args: tuple[Any, ...], result: Any) -> None:
    if answers.known(args[0]) is not None:
        answers.drawn.chosen(answers.sum(args[0]), args[1], result)


def _neither(answers: Answers, args: tuple[Any, ...], result: Any) -> None:
    """The opposite of a mask."""
    known = answers.known(args[0])
    if result.dtype is torch.bool and known is not None:
        answers.take(result, result.numel() - answers.sum(args[0]))


def _sum(answers: Answers, args: tuple[Any, ...], result: Any) -> None:
    if not args[0].is_floating_point():
        answers.take(result, answers.sum(args[0]))


def _no_overflow(answers: Answers, args: tuple[Any, ...], result: Any) -> None:
    answers.take(args[1], 0)


def _ones_scattered(answers: Answers, args: tuple[Any, ...], result: Any) -> None:
    answers.take(result, min(args[2].numel(), result.numel()))


def _counted(answers: Answers, args: tuple[Any, ...], result: Any) -> None:
    answers.share_out(result, args[0].numel())


def _cast(answers: Answers, args: tuple[Any, ...], result: Any) -> None:
    known = answers.known(args[0])
    if known is not None and isinstance(result, FakeTensor):
        answers.take(result, answers.sum(args[0]), known.classes)


def _routed(answers: Answers, args: tuple[Any, ...], result: Any) -> None:
    dim = args[2] if len(args) > 2 else -1
    # their values are of no use, only that they are one of so many
    answers.take(result[1], result[1].numel(), classes=args[0].shape[dim])


def _compared(compare: Callable[[Any, Any], bool]) -> Callable[[Answers, tuple[Any, ...], Any], None]:
    def note(answers: Answers, args: tuple[Any, ...], result: Any) -> None:
        known = answers.known(args[0])
        if isinstance(args[1], float) and not math.isfinite(args[1]):
            # any finite value compares alike
            answers.take(result, result.numel() if compare(1.0, args[1]) else 0)
            return
        if known is None or not known.count:
            return
        if known.classes:
            if compare is operator.eq:
                answers.take(result, -(-result.numel() // known.classes))
        else:
            answers.take(result, result.numel() if compare(known.total / known.count, args[1]) else 0)

    return note


RULES: dict[Any, Callable[[Answers, tuple[Any, ...], Any], None]] = {
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
"""By op: called with its arguments and its result, once it has run."""
