"""Normalisations and softmax."""

from __future__ import annotations

from typing import Any

import torch

from trainmem_backend.trace.kernels.reductions import reduction_scratch
from trainmem_backend.trace.kernels.registry import KernelCall, rule

__all__: list[str] = []

_OF_ROWS = (torch.ops.aten.native_layer_norm.default, torch.ops.aten._fused_rms_norm.default)
"""Normalisations of rows read an input in one piece (expect_contiguous in layer_norm_kernel.cu)."""


@rule(
    "native_layer_norm",
    "_fused_rms_norm",
    "native_batch_norm",
    "_native_batch_norm_legit",
)
def _statistics_in_fp32(call: KernelCall) -> Any:
    """Mean and reciprocal deviation are fp32 whatever the input is (layer_norm_kernel.cu, Normalization.cuh)."""
    result = call.result()
    copy = call.contiguous_copy(call.args[0]) if call.func in _OF_ROWS else -1
    call.recorder.watch(result[0])
    for statistic in result[1:]:
        call.recorder.watch(statistic, max(4, statistic.element_size()) * statistic.numel())
    call.recorder.free(copy)
    return result


@rule("native_group_norm.default")
def _group_norm(call: KernelCall) -> Any:
    """Statistics in the input's dtype, or the weight's, and while it runs a scale and a shift for every channel.

    16-bit inputs have statistics in fp32 besides (group_norm_kernel.cu).
    """
    result, mean, _ = call.result()
    values, weight = call.args[:2]
    dtype = values.dtype if weight is None else weight.dtype
    rows, channels = call.args[3:5]
    statistics = [values.new_empty(mean.shape, dtype=dtype) for _ in range(2)]
    call.outputs((result, *statistics))
    narrow = [4 * mean.numel()] * 2 if values.element_size() < 4 else []
    wide = max(4, values.element_size())
    call.recorder.scratch(*narrow, wide * rows * channels, wide * rows * channels)
    return result, *statistics


@rule("native_group_norm_backward.default")
def _group_norm_backward(call: KernelCall) -> Any:
    """Sums over every channel, then what a group and a channel are scaled by (group_norm_kernel.cu)."""
    result = call.outputs(call.result())
    values, (rows, channels), groups = call.args[1], call.args[5:7], call.args[8]
    wide = max(4, values.element_size())
    of_channels, of_groups = wide * rows * channels, wide * rows * groups
    call.recorder.scratch(of_channels, of_channels, of_groups, of_groups, of_channels)
    return result


@rule("_softmax", "_log_softmax")
def _softmax(call: KernelCall) -> Any:
    """Rows of a tensor that is in one piece (host_softmax in SoftMax.cu)."""
    copy = call.contiguous_copy(call.args[0])
    result = call.outputs(call.result())
    call.recorder.free(copy)
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


_MANY_ROWS = 64 * 1024
_MOST_BLOCKS = 32 * 1024


@rule("native_layer_norm_backward")
def _layer_norm_backward(call: KernelCall) -> Any:
    """The input is read in one piece, and so is the gradient, once the results are there.

    Over 65,536 narrow rows the gradients of scale and shift are summed in two steps.

    Blocks of 32 rows and columns first write partial sums, which `sum` then adds up; the tensors that were made
    for the results before are dropped (LaunchGammaBetaBackwardCUDAKernel in layer_norm_kernel.cu).
    """
    copy = call.contiguous_copy(call.args[1])
    result = _gradients_of_rows(call)
    call.recorder.free(call.contiguous_copy(call.args[0]))
    call.recorder.free(copy)
    return result


@rule("_fused_rms_norm_backward")
def _rms_norm_backward(call: KernelCall) -> Any:
    """As layer norm's, where the rows are few (layer_norm_kernel.cu)."""
    copy = call.contiguous_copy(call.args[1])
    result = call.outputs(call.result())
    call.recorder.free(call.contiguous_copy(call.args[0]))
    call.recorder.free(copy)
    return result


def _gradients_of_rows(call: KernelCall) -> Any:
    result = call.result()
    recorder = call.recorder
    width = 1
    for size in call.args[2]:
        width *= size
    rows = call.args[1].numel() // width
    if rows <= _MANY_ROWS or width // 32 >= call.traits.multiprocessors // 2:
        return call.outputs(result)
    gradients = [gradient for gradient in result[1:] if gradient is not None]
    if result[0] is not None:
        recorder.watch(result[0])
    dropped = [recorder.allocate(gradient.numel() * gradient.element_size()) for gradient in gradients]
    parts = min(_MOST_BLOCKS // -(-width // 32), -(-rows // 32))
    partial = [gradient.new_empty((parts, width)) for gradient in gradients]
    blocks = [recorder.allocate(part.numel() * part.element_size()) for part in partial]
    for gradient, part, number in zip(gradients, partial, dropped, strict=True):
        recorder.watch(gradient)
        scratch = reduction_scratch(call.traits, part, {0}, values=16 // part.element_size())
        if scratch[0]:
            recorder.scratch(*scratch)
        recorder.free(number)
    for number in reversed(blocks):
        recorder.free(number)
    return result
