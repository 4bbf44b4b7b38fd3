"""Scans, sorts, padding and indexing, and pointwise ops that make a tensor of a scalar."""

from __future__ import annotations

from typing import Any

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
