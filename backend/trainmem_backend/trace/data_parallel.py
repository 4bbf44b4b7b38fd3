"""`DistributedDataParallel` on a virtual GPU.

PyTorch's reducer is C++ that reads tensors' memory, so a stand-in makes the buffers that it makes: one flat
bucket of all gradients until the first backward has shown their order, then buckets of 25 MiB in that order;
such buckets in the parameters' reverse order from the start where it looks for unused parameters
(torch/nn/parallel/distributed.py, torch/csrc/distributed/c10d/reducer.cpp).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

__all__ = ["VirtualDataParallel"]

_MIB = 1 << 20
_FIRST_BUCKET_BYTES = _MIB
_BROADCAST_BYTES = 250 * _MIB


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


class VirtualDataParallel(torch.nn.Module):
    """A module whose gradients are averaged in buckets; collectives do nothing.

    What ``communicating`` encloses is counted as communication.
    """

    communicating: Callable[[], AbstractContextManager[None]] = nullcontext

    def __init__(
        self,
        module: torch.nn.Module,
        *args: Any,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        static_graph: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        self.module = module
        self._limit = int((25 if bucket_cap_mb is None else bucket_cap_mb) * _MIB)
        self._trained = [p for p in module.parameters() if p.requires_grad]
        self._arrived: list[torch.Tensor] = []
        self._buckets: list[torch.Tensor] = []
        # which gradients come is then found out anew in every step, so their order stays that of the parameters
        self._is_rebuilt = find_unused_parameters and not static_graph
        self._may_miss_gradients = find_unused_parameters or static_graph
        self._ready = 0
        self._hooks = [p.register_post_accumulate_grad_hook(self._arrive) for p in self._trained]
        self._broadcast([*module.parameters(), *module.buffers()])
        if self._trained:
            first = self._grouped(self._trained)[::-1] if self._is_rebuilt else [self._trained]
            self._buckets = [self._flat(group) for group in first]

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def _flat(self, tensors: list[torch.Tensor] | list[torch.nn.Parameter]) -> torch.Tensor:
        elements = sum(t.numel() for t in tensors)
        with self.communicating():
            return torch.empty(elements, dtype=tensors[0].dtype, device=tensors[0].device)

    def _broadcast(self, tensors: list[Any]) -> None:
        """Rank 0's values go out in flat copies of up to 250 MiB, a dtype at a time."""
        for dtype in dict.fromkeys(t.dtype for t in tensors):
            run: list[Any] = []
            size = 0
            for tensor in (t for t in tensors if t.dtype is dtype):
                if run and size + _bytes(tensor) > _BROADCAST_BYTES:
                    self._flat(run)
                    run, size = [], 0
                run.append(tensor)
                size += _bytes(tensor)
            if run:
                self._flat(run)

    def _arrive(self, parameter: torch.Tensor) -> None:
        self._ready += 1
        if not self._is_rebuilt and len(self._arrived) < len(self._trained):
            self._arrived.append(parameter)

    def _grouped(self, tensors: list[Any]) -> list[list[Any]]:
        """Tensors of one bucket together: a small one first, so that sending starts early."""
        groups: list[list[Any]] = [[]]
        limit = _FIRST_BUCKET_BYTES
        for tensor in tensors:
            groups[-1].append(tensor)
            if sum(map(_bytes, groups[-1])) >= limit:
                groups.append([])
                limit = self._limit
        return [group for group in groups if group]

    def _rebuild(self) -> None:
        """Buckets in the order in which gradients arrived."""
        order = torch.empty(len(self._arrived) + 1, dtype=torch.int32, device=self._arrived[0].device)
        groups = self._grouped(self._arrived)
        sizes = torch.empty(len(groups), dtype=torch.int32, device=order.device)
        del sizes, order
        self._buckets.clear()
        self._buckets.extend(self._flat(group) for group in groups)
        self._arrived.clear()
        self._is_rebuilt = True

    def _require_all_gradients(self) -> None:
        """`Reducer::ensure_prior_reduction_finished`: a parameter without a gradient holds up its bucket."""
        if 0 < self._ready < len(self._trained) and not self._may_miss_gradients:
            raise RuntimeError(
                "Expected to have finished reduction in the prior iteration before starting a new one: "
                f"{len(self._trained) - self._ready} of {len(self._trained)} parameters had no gradient; "
                "DistributedDataParallel wants find_unused_parameters=True then"
            )
        self._ready = 0

    def no_sync(self) -> AbstractContextManager[None]:
        """Gradients of micro batches inside add up and are not sent, which takes no other memory."""
        return nullcontext()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Rebuild the buckets once, send the buffers, run the module."""
        if torch.is_grad_enabled():
            self._require_all_gradients()
            if self._arrived:
                self._rebuild()
        if buffers := list(self.module.buffers()):
            self._broadcast(buffers)
        return self.module(*args, **kwargs)
