"""Which module runs, in forward and in backward, and which part of the memory that fills."""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from trainmem_backend.trace.recorder import BUCKET_INDEX

__all__ = ["Attribution", "op_label"]

_TEMPORARIES, _LOGITS = BUCKET_INDEX["temporaries"], BUCKET_INDEX["logits"]
_HEADS = ("lm_head", "embed_out", "score", "classifier", "head")
_OF_LOSSES = {
    torch.ops.aten._log_softmax.default,
    torch.ops.aten._log_softmax_backward_data.default,
    torch.ops.aten.nll_loss_backward.default,
    torch.ops.aten.nll_loss2d_backward.default,
}
"""Those of a cross entropy, wherever it is computed."""
_ACCUMULATES = (1 << 63) - 1
"""Nodes that accumulate gradients have the largest sequence number: they belong to no call."""


@cache
def op_label(func: Any) -> str:
    """An op in words: ``_foreach_sqrt`` is "foreach sqrt", ``_softmax_backward_data`` "softmax backward"."""
    name = str(func.overloadpacket).rpartition(".")[2] if hasattr(func, "overloadpacket") else str(func)
    name = name.removesuffix("_data").strip("_")
    head, found, rest = name.partition("_backward")
    if found and not rest:
        return f"{head} backward"
    return name.replace("foreach_", "foreach ").replace("fused_", "fused ")


class Attribution:
    """The stack of running modules, and for every autograd node the module that made it.

    A node's sequence number lies between those at which modules were entered and left, so no node has to be
    asked for when it is made. What runs outside of every module, and in modules without parameters that the program
    calls itself, is the loss.
    """

    def __init__(self, number_of: Callable[[torch.Tensor], int]) -> None:
        self.answered: list[int] = []
        """Allocations of what the module that the program called last answered; ``number_of`` tells them."""
        self._number_of = number_of
        self._stack: list[torch.nn.Module] = []
        self._names: dict[int, str] = {}
        self._keep: list[torch.nn.Module] = []
        self._starts: list[int] = [0]
        self._modules: list[str | None] = [None]
        self._logits_modules: set[str] = set()
        self._current: str | None = None

    def name(self, root: torch.nn.Module) -> None:
        """Name every module below ``root``; the ones that hold a head, and the head, fill the logits."""
        self._keep.append(root)
        for path, module in root.named_modules():
            self._names.setdefault(id(module), path)
            for child, _ in module.named_children():
                if child in _HEADS:
                    self._logits_modules |= {path, f"{path}.{child}" if path else child}
        self._name_output_embedding(root)

    def _name_output_embedding(self, root: torch.nn.Module) -> None:
        """The head of a model that keeps it deeper down, as BERT does; the model itself computes the loss."""
        for path, module in root.named_modules():
            if hasattr(type(module), "get_output_embeddings"):
                head = module.get_output_embeddings()
                if head is not None and id(head) in self._names:
                    self._logits_modules |= {path, self._names[id(head)]}
                return

    @property
    def in_module(self) -> bool:
        """Whether a module's forward is running."""
        return bool(self._stack)

    def forget_nodes(self) -> None:
        """A step is over: no node of it will run again."""
        del self._starts[:], self._modules[:]
        self._boundary()

    def _boundary(self) -> None:
        # a module that a function makes on the way, as clipped GELU's, runs for the one that called it
        known = (self._names[id(module)] for module in reversed(self._stack) if id(module) in self._names)
        self._current = next(known, "") if self._stack else None
        self._starts.append(torch._C._autograd._get_sequence_nr())
        self._modules.append(self._current)

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        if not self._stack:
            if next(module.parameters(), None) is None:
                return
            if id(module) not in self._names:
                self.name(module)
        self._stack.append(module)
        self._boundary()

    def _leave(self, module: torch.nn.Module, args: Any, result: Any) -> None:
        if not self._stack:
            return
        while self._stack and self._stack.pop() is not module:
            pass
        self._boundary()
        if not self._stack and torch.is_grad_enabled():
            self.answered = [self._number_of(tensor) for tensor in _tensors(result)]

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Follow the calls of modules inside."""
        entering = register_module_forward_pre_hook(self._enter)
        leaving = register_module_forward_hook(self._leave, always_call=True)
        try:
            yield
        finally:
            entering.remove()
            leaving.remove()

    def module(self, *, backward: bool) -> str | None:
        """The module that runs, or in backward the one whose gradient is computed; None outside of all of them."""
        if self._stack or not backward:
            return self._current
        node = torch._C._current_autograd_node()
        if node is None:
            return ""
        number = node._sequence_nr()
        if number >= _ACCUMULATES:
            return ""
        return self._modules[bisect_right(self._starts, number) - 1]

    def bucket(self, func: Any, module: str | None, *, recomputes: bool) -> int:
        """Heads and losses fill the logits, everything else is temporary until it turns out to be saved."""
        if func in _OF_LOSSES or module in self._logits_modules:
            return _LOGITS
        if module is None:
            # a block that is run again outside of every module is no loss
            return _TEMPORARIES if recomputes else _LOGITS
        head, _, _ = module.rpartition(".")
        return _LOGITS if head in self._logits_modules and head.rpartition(".")[2] in _HEADS else _TEMPORARIES


def _tensors(result: Any) -> list[torch.Tensor]:
    """What a model answers: a tensor, some of them, or an object that has ``logits``; not its caches."""
    result = getattr(result, "logits", result)
    parts = result if isinstance(result, tuple | list) else [result]
    return [part for part in parts if isinstance(part, torch.Tensor)]
