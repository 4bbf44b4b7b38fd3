"""`DistributedDataParallel` on a virtual GPU.

PyTorch's reducer is C++ that reads tensors' memory, so a stand-in makes the buffers that it makes: one flat
bucket of all gradients until the first backward has shown their order, then buckets of 25 MiB in that order;
such buckets in the parameters' reverse order from the start where it looks for unused parameters
(torch/nn/parallel/distributed.py, torch/csrc/distributed/c10d/reducer.cpp).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.utils._pytree import tree_map

__all__ = ["VirtualDataParallel"]

_MIB = 1 << 20
_FIRST_BUCKET_BYTES = _MIB
_BROADCAST_BYTES = 250 * _MIB
_BROADCASTS_IN_FLIGHT = 2


def _grouped(tensors: list[Any], first_limit: int, limit: int) -> list[list[Any]]:
    """Tensors of one bucket together, a dtype at a time: each bucket closes with the tensor that fills it
    (`compute_bucket_assignment_by_size`).
    """
    groups: list[list[Any]] = []
    filling: dict[torch.dtype, list[Any]] = {}
    limits: dict[torch.dtype, int] = {}
    for tensor in tensors:
        group = filling.setdefault(tensor.dtype, [])
        group.append(tensor)
        if sum(t.numel() * t.element_size() for t in group) >= limits.get(tensor.dtype, first_limit):
            groups.append(filling.pop(tensor.dtype))
            limits[tensor.dtype] = limit
    return [*groups, *filling.values()]


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
        broadcast_buffers: bool = True,
        gradient_as_bucket_view: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        self.module = module
        self.require_backward_grad_sync = True
        self._limit = int((25 if bucket_cap_mb is None else bucket_cap_mb) * _MIB)
        self._trained = [p for p in module.parameters() if p.requires_grad]
        self._arrived: list[torch.Tensor] = []
        self._buckets: list[torch.Tensor] = []
        # where a gradient lies in its bucket, if it is to be a view of it
        self._views: dict[torch.Tensor, torch.Tensor] | None = {} if gradient_as_bucket_view else None
        # which gradients come is then found out anew in every step, so their order stays that of the parameters
        self._is_rebuilt = self._copies_outputs = find_unused_parameters and not static_graph
        self._may_miss_gradients = find_unused_parameters or static_graph
        self._broadcasts_buffers = self._sends_buffers_next = broadcast_buffers
        self._expects_gradients = False
        self._ready = 0
        self._hooks = [p.register_post_accumulate_grad_hook(self._arrive) for p in self._trained]
        self._verify_shapes()
        self._broadcast([*module.parameters(), *module.buffers()])
        if self._is_rebuilt:
            self._fill_buckets(
                self._in_order(_grouped(self._trained, _FIRST_BUCKET_BYTES, self._limit))[::-1]
            )
            # which parameters any rank used (`Reducer::initialize_local_used_map`)
            self._used = self._empty(len(self._trained), torch.int32, self._trained[0].device)
        else:
            self._fill_buckets(_grouped(self._trained, 1 << 62, 1 << 62))

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def _empty(self, elements: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        with self.communicating():
            return torch.empty(elements, dtype=dtype, device=device)

    def _flat(self, tensors: list[Any]) -> torch.Tensor:
        return self._empty(sum(t.numel() for t in tensors), tensors[0].dtype, tensors[0].device)

    def _in_order(self, groups: list[list[Any]]) -> list[list[Any]]:
        """Groups by their first tensor, of lists that hold parameters before buffers."""
        place = {id(t): at for at, t in enumerate([*self.module.parameters(), *self.module.buffers()])}
        return sorted(groups, key=lambda group: place[id(group[0])])

    def _verify_shapes(self) -> None:
        """Ranks tell each other how many parameters they train, and rank 0 their sizes and strides
        (`verify_params_across_processes`).
        """
        if not self._trained:
            return
        device = self._trained[0].device
        ranks = torch.distributed.get_world_size()
        counts = [self._empty(1, torch.int64, device) for _ in range(1 + ranks)]
        gathered = self._empty(ranks, torch.int64, device)
        del gathered
        shapes = self._empty(2 * sum(p.dim() for p in self._trained), torch.int64, device)
        del shapes, counts

    def _broadcast(self, tensors: list[Any]) -> None:
        """Rank 0's values go out in flat copies that close once they hold 250 MiB, two under way at a time; a
        tensor that is alone goes out as it lies (`broadcast_coalesced`).
        """
        under_way: deque[torch.Tensor | None] = deque()
        for group in self._in_order(_grouped(tensors, _BROADCAST_BYTES, _BROADCAST_BYTES)):
            if len(under_way) == _BROADCASTS_IN_FLIGHT:
                under_way.popleft()
            under_way.append(self._flat(group) if len(group) > 1 else None)
        while under_way:
            under_way.popleft()

    def _fill_buckets(self, groups: list[list[Any]]) -> None:
        self._buckets.clear()
        if self._views is not None:
            self._views.clear()
        for group in groups:
            bucket = self._flat(group)
            self._buckets.append(bucket)
            if self._views is not None:
                parts = bucket.split([p.numel() for p in group])
                self._views.update((p, part.view_as(p)) for p, part in zip(group, parts, strict=True))

    def _arrive(self, parameter: torch.Tensor) -> None:
        """`Reducer::autograd_hook`: the gradient is copied into its bucket, and is from then on a view of it if
        it may be one.
        """
        if not self._expects_gradients:
            return
        self._ready += 1
        if not self._is_rebuilt and len(self._arrived) < len(self._trained):
            self._arrived.append(parameter)
        if self._views is not None:
            parameter.grad = self._views[parameter]
        self._expects_gradients = self._ready < len(self._trained)

    def _rebuild(self) -> None:
        """Buckets in the order in which gradients arrived."""
        order = torch.empty(len(self._arrived) + 1, dtype=torch.int32, device=self._arrived[0].device)
        groups = _grouped(self._arrived, _FIRST_BUCKET_BYTES, self._limit)
        sizes = torch.empty(len(groups), dtype=torch.int32, device=order.device)
        del sizes, order
        self._fill_buckets(groups)
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

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients of micro batches inside add up outside the buckets, and are not sent."""
        before = self.require_backward_grad_sync
        self.require_backward_grad_sync = False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Rebuild the buckets once, send the buffers, run the module."""
        if torch.is_grad_enabled():
            self._require_all_gradients()
            if self._arrived:
                self._rebuild()
        if self._sends_buffers_next and (buffers := list(self.module.buffers())):
            self._broadcast(buffers)
        output = self.module(*args, **kwargs)
        self._expects_gradients = torch.is_grad_enabled() and self.require_backward_grad_sync
        self._sends_buffers_next = self._broadcasts_buffers and self._expects_gradients
        if self._copies_outputs:
            # so that outputs that no loss uses are told apart from those that got a gradient of zero (_DDPSink)
            output = tree_map(
                lambda value: value.clone() if isinstance(value, torch.Tensor) else value, output
            )
        return output
