"""What a fake tensor answers when the program asks for its value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.multiprocessing.reductions import StorageWeakRef

from trainmem_backend.trace.answer_rules import RULES
from trainmem_backend.trace.drawn_values import DrawnValues
from trainmem_backend.trace.known_values import KnownValues

__all__ = ["Answers", "Known"]


@dataclass(frozen=True, slots=True)
class Known:
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
        self.exact = KnownValues()
        self._known: dict[int, Known] = {}
        self.drawn = DrawnValues()

    def saw(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Remember results whose values are known, or follow from what is taken as given."""
        if self.exact.saw(func, args, kwargs, result):
            return
        beyond = self.drawn.saw(func, args, result)
        if beyond is not None:
            self.take(result, beyond)
            return
        note = RULES.get(func)
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
        known = self.known(tensor)
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
        known, usual = self.known(tensor), int(tensor.dtype is not torch.bool)
        if known is None or known.classes or not tensor.is_contiguous():
            return torch.full((), usual, dtype=tensor.dtype, device="cpu").expand(tuple(tensor.shape))
        start = int(tensor.storage_offset())
        each = [known.at(start + position) for position in range(tensor.numel())]
        return torch.tensor(each, dtype=tensor.dtype, device="cpu").view(tuple(tensor.shape))

    def sum(self, tensor: torch.Tensor) -> int:
        """What its elements add up to: how many of a mask are true."""
        exact = self.exact.of(tensor)
        if exact is not None:
            with unset_fake_temporarily():
                return int(exact.sum())
        known = self.known(tensor)
        if known is None or not known.count:
            return tensor.numel()
        return -(-known.total * tensor.numel() // known.count)

    def chosen(self, mask: torch.Tensor) -> int:
        """How many elements of ``mask`` the program finds to be true."""
        self._asked_for(mask)
        return min(mask.numel(), self.sum(mask))

    def _asked_for(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The tensor's values where they are known; counts what is made up instead."""
        exact = self.exact.of(tensor)
        if exact is None or self.exact.is_assumed(tensor):
            self.asked += 1
        return exact

    def share_out(self, tensor: torch.Tensor, total: int) -> None:
        """A row of counts adds up to ``total``, as equal ones as can be."""
        self.take(tensor, total)
        known = self._known[_key(tensor)]
        with unset_fake_temporarily():
            counts = torch.tensor([known.at(position) for position in range(tensor.numel())])
        self.exact.set(tensor, counts, is_assumed=True)

    def known(self, tensor: torch.Tensor) -> Known | None:
        """What is known of its storage's elements."""
        return self._known.get(_key(tensor))

    def take(self, tensor: torch.Tensor, total: int, classes: int = 0) -> None:
        """From now on the elements of its storage add up to ``total``; see `Known`."""
        storage = tensor.untyped_storage()
        self._known[storage._cdata] = Known(StorageWeakRef(storage), total, tensor.numel(), classes)


def _key(tensor: torch.Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key
