"""Indexing, sorting and counting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from trainmem_backend.trace.kernels.cub import radix_sort_bytes
from trainmem_backend.trace.kernels.registry import KernelCall, rule
from trainmem_backend.trace.kernels.selection import replace_masks

__all__: list[str] = []

_LARGEST_BLOCK_SORT = 4096


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


@rule("index.Tensor")
def _index(call: KernelCall) -> Any:
    """Indices on the host are copied over, and several must agree in strides, or each is made contiguous.

    ATen/native/TensorAdvancedIndexing.cpp, make_info.
    """
    recorder = call.recorder
    if _has_masks(call.args[1]):
        call.args = (call.args[0], replace_masks(call, call.args[1]))
    result = call.result()
    indices = [index for index in call.args[1] if index is not None]
    copies = [recorder.allocate(_bytes(index)) for index in indices if not recorder.is_device(index)]
    if len(indices) > 1:
        expanded = torch.broadcast_tensors(*indices)
        if len({index.stride() for index in expanded}) > 1:
            copies += [recorder.allocate(_bytes(index)) for index in expanded if not index.is_contiguous()]
    call.outputs(result)
    for number in reversed(copies):
        recorder.free(number)
    return result


@rule("index_put.default", "index_put_.default", "_index_put_impl_", "_unsafe_index_put")
def _index_put(call: KernelCall) -> Any:
    """Adding at indices sorts them first (index_put_with_sort_kernel in Indexing.cu)."""
    target, indices, value = call.args[:3]
    result = call.written_into_zeros(call.result(), target)
    accumulate = call.argument(3, "accumulate", False)
    if _has_masks(indices) and (accumulate or value.numel() > 1):
        # one value where nothing adds up is a masked fill instead
        indices = replace_masks(call, indices)
    if accumulate:
        _sort_for_addition(call, target, indices)
    return result


@rule("scatter.src", "scatter_add", "index_add")
def _scatter(call: KernelCall) -> Any:
    """In place where a gradient's formula writes into zeros."""
    return call.written_into_zeros(call.result(), call.args[0])


def _has_masks(indices: Sequence[torch.Tensor | None]) -> bool:
    return any(index is not None and index.dtype is torch.bool for index in indices)


def _sort_for_addition(call: KernelCall, target: torch.Tensor, places: Sequence[torch.Tensor | None]) -> None:
    recorder = call.recorder
    indices = [index for index in places if index is not None]
    count = torch.broadcast_shapes(*(index.shape for index in indices)).numel()
    linear = -1
    for _ in indices:
        wrapped = recorder.allocate(8 * count)
        product = recorder.allocate(8 * count)
        recorder.free(wrapped)
        if linear < 0:
            linear = product
        else:
            # added to the first in place (computeLinearIndex in TensorAdvancedIndexing)
            recorder.free(product)
    rows = 1
    for index, size in zip(places, target.shape, strict=False):
        rows *= size if index is not None else 1
    ordered, original, positions = (recorder.allocate(8 * count) for _ in range(3))
    recorder.scratch(radix_sort_bytes(count, 8, 8, bits=max(1, rows.bit_length())))
    for number in (positions, original, ordered, linear):
        recorder.free(number)


@rule("sort.default", "sort.stable")
def _sort(call: KernelCall) -> Any:
    """Up to 4,096 elements a block sorts in place, after writing the positions (Sort.cu, Sort.cpp)."""
    result = call.outputs(call.result())
    values = result[0]
    dim = (
        call.argument(1, "dim", -1)
        if call.func is torch.ops.aten.sort.default
        else call.kwargs.get("dim", -1)
    )
    length = values.shape[dim] if values.dim() else 1
    if length <= _LARGEST_BLOCK_SORT:
        call.recorder.scratch(8 * length)
    else:
        count = values.numel()
        call.recorder.scratch(8 * count, radix_sort_bytes(count, values.element_size(), 8))
    return result


@rule("histc")
def _histc(call: KernelCall) -> Any:
    """Given both ends, only the bins are allocated (SummaryOps.cu); the CPU knows no integers here."""
    tensor = call.args[0]
    bins = call.argument(1, "bins", 100)
    return call.outputs(tensor.new_empty((bins,)))


@rule("topk")
def _topk(call: KernelCall) -> Any:
    """Values and indices (TensorTopK.cu)."""
    return call.outputs(call.result())
