"""Scans, comparisons, and pointwise ops that make a tensor of a scalar."""

from __future__ import annotations

import math
from typing import Any

import torch

from trainmem_backend.trace.kernels.cub import scan_bytes
from trainmem_backend.trace.kernels.registry import KernelCall, rule

__all__: list[str] = []


@rule("cumsum.default", "cumprod.default")
def _scan(call: KernelCall) -> Any:
    """Another dtype than the input's means a converted copy first (impl_func_cum_ops in ReduceOps.cpp).

    One that is not in one piece is copied (expect_contiguous in ScanKernels.cpp). A sum over the only dimension
    longer than 1 is CUB's (scan_dim in ScanUtils.cuh).
    """
    result = call.outputs(call.result())
    sizes = []
    if result.dtype != call.args[0].dtype or not call.args[0].is_contiguous():
        sizes.append(result.numel() * result.element_size())
    if result.dim() and result.numel() == result.shape[call.args[1]]:
        sizes.append(scan_bytes(result.numel(), result.element_size()))
    if sizes:
        call.recorder.scratch(*sizes)
    return result


@rule("pow.Scalar")
def _scalar_to_the_power(call: KernelCall) -> Any:
    """The base becomes a tensor of its own on the device (structured_pow_Scalar_out in Pow.cpp)."""
    result = call.outputs(call.result())
    call.recorder.scratch(8)
    return result


@rule("log_sigmoid_forward.default")
def _log_sigmoid(call: KernelCall) -> Any:
    """The output alone: it is the CPU that keeps a buffer for backward (Activation.cpp)."""
    values = call.args[0]
    return call.outputs(torch.empty_like(values)), values.new_empty(0)


@rule("log_sigmoid_backward.default")
def _log_sigmoid_backward(call: KernelCall) -> Any:
    """One gradient."""
    return call.outputs(torch.empty_like(call.args[1]))


@rule("equal")
def _equal(call: KernelCall) -> bool:
    """Element by element, then `all` (cuda_equal in ReduceOps.cpp); fake tensors are taken to be equal."""
    call.recorder.scratch(call.args[0].numel(), 1)
    return True


@rule("fill.Scalar", "fill_.Scalar", "masked_fill.Scalar", "masked_fill_.Scalar")
def _filled(call: KernelCall) -> Any:
    """A finite number beyond the dtype's range is refused (checked_convert in c10/util/TypeCast.h)."""
    tensor, value = call.args[0], call.args[-1]
    if tensor.is_floating_point() and math.isfinite(value) and abs(value) > torch.finfo(tensor.dtype).max:
        raise RuntimeError(f"value cannot be converted to type {tensor.dtype} without overflow")
    return call.outputs(call.result())
