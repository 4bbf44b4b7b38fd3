"""Normalisations and softmax."""

from __future__ import annotations

from typing import Any

from trainmem_backend.trace.kernels.registry import KernelCall, rule

__all__: list[str] = []


@rule("native_layer_norm", "native_group_norm", "_fused_rms_norm")
def _statistics_in_fp32(call: KernelCall) -> Any:
    """Mean and reciprocal deviation are fp32 whatever the input is (layer_norm_kernel.cu)."""
    result = call.result()
    call.recorder.watch(result[0])
    for statistic in result[1:]:
        call.recorder.watch(statistic, max(4, statistic.element_size()) * statistic.numel())
    return result


@rule("_softmax_backward_data")
def _softmax_backward(call: KernelCall) -> Any:
    """The product of gradient and output is a tensor first (softmax_backward_cuda_out in SoftMax.cu)."""
    result = call.outputs(call.result())
    gradient = call.args[0]
    call.recorder.scratch(gradient.numel() * gradient.element_size())
    return result


@rule("_safe_softmax")
def _safe_softmax(call: KernelCall) -> Any:
    """Softmax, then rows that were masked out entirely are set to zero (_safe_softmax in SoftMax.cpp)."""
    result = call.outputs(call.result())
    dim = call.args[1]
    scores = result.numel()
    call.recorder.scratch(scores, scores // max(1, result.shape[dim]), result.element_size())
    return result


@rule("native_dropout")
def _dropout(call: KernelCall) -> Any:
    """The mask, one byte per element, comes before the output (Dropout.cu)."""
    result = call.result()
    call.recorder.watch(result[1])
    call.recorder.watch(result[0])
    return result
