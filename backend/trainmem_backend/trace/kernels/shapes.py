"""Scans, sorts, padding and indexing, and pointwise ops that make a tensor of a scalar."""

from __future__ import annotations

from typing import Any

import torch

from trainmem_backend.trace.kernels.registry import KernelCall, rule

__all__: list[str] = []


@rule("cumsum.default", "cumprod.default")
def _scan(call: KernelCall) -> Any:
    """Another dtype than the input's means a converted copy first (impl_func_cum_ops in ReduceOps.cpp)."""
    result = call.outputs(call.result())
    if result.dtype != call.args[0].dtype:
        call.recorder.scratch(result.numel() * result.element_size())
    return result


@rule("pow.Scalar")
def _scalar_to_the_power(call: KernelCall) -> Any:
    """The base becomes a tensor of its own on the device (structured_pow_Scalar_out in Pow.cpp)."""
    result = call.outputs(call.result())
    call.recorder.scratch(8)
    return result


@rule("equal")
def _equal(call: KernelCall) -> bool:
    """Element by element, then `all` (cuda_equal in ReduceOps.cpp); fake tensors are taken to be equal."""
    call.recorder.scratch(call.args[0].numel(), 1)
    return True


@rule("index.Tensor")
def _index(call: KernelCall) -> Any:
    """Several index tensors must agree in strides, or each is made contiguous (TensorAdvancedIndexing.cpp)."""
    result = call.result()
    recorder = call.recorder
    indices = [index for index in call.args[1] if index is not None]
    copies = []
    if len(indices) > 1:
        expanded = torch.broadcast_tensors(*indices)
        if len({index.stride() for index in expanded}) > 1:
            copies = [
                recorder.allocate(index.numel() * index.element_size())
                for index in expanded
                if not index.is_contiguous()
            ]
    call.outputs(result)
    for number in reversed(copies):
        recorder.free(number)
    return result
