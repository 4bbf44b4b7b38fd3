"""Convolutions: cuDNN reads values, weights and gradients in one memory format and copies what has another."""

from __future__ import annotations

from typing import Any

import torch
from torch._prims_common import suggest_memory_format

from trainmem_backend.trace.kernels.registry import KernelCall, rule

__all__: list[str] = []


_ONE_SPATIAL_DIMENSION = 3
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_NOT_COUNTED = (
    "the scratch memory of cuDNN's convolutions, held only while each runs, is not counted: cuDNN chooses it"
)


@rule("convolution.default")
def _convolution(call: KernelCall) -> Any:
    """Values in cuDNN's format, the output, the weights in cuDNN's format (Convolution.cpp, ConvShared.cpp).

    With one spatial dimension the input is made contiguous, lest it pass for channels-last. cuDNN picks an
    algorithm by rules of its own, and its workspace with it.
    """
    call.recorder.note(_NOT_COUNTED)
    values, weight = call.args[:2]
    memory_format = _format(call, values, weight)
    copy = _copy(call, values, memory_format)
    result = call.outputs(call.result().contiguous(memory_format=memory_format))
    call.recorder.free(_copy(call, weight, memory_format))
    call.recorder.free(copy)
    return result


@rule("convolution_backward.default")
def _convolution_backward(call: KernelCall) -> Any:
    """Values and gradient in cuDNN's format are held; the weights are while the gradient of the values is made.

    A depthwise kernel of PyTorch's own makes the weight's gradient first.
    """
    call.recorder.note(_NOT_COUNTED)
    gradient, values, weight = call.args[:3]
    memory_format = _format(call, values, weight)
    held = [_copy(call, tensor, memory_format) for tensor in (values, gradient)]
    *wide, of_bias = call.result()
    of_values, of_weight = (
        None if found is None else found.contiguous(memory_format=memory_format) for found in wide
    )
    is_depthwise = 1 < call.named("groups") == values.shape[1]
    if is_depthwise and memory_format is torch.contiguous_format:
        call.outputs((of_weight, of_values, of_bias))
    else:
        call.outputs((of_values,))
        if of_values is not None:
            call.recorder.free(_copy(call, weight, memory_format))
        call.outputs((of_weight, of_bias))
    for copy in reversed(held):
        call.recorder.free(copy)
    return of_values, of_weight, of_bias


def _format(call: KernelCall, values: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """Channels last where values or weights are (cudnn_conv_suggest_memory_format in ConvUtils.h)."""
    wanted = _CHANNELS_LAST.get(weight.dim())
    if wanted is None or torch.float64 in (values.dtype, weight.dtype):
        return torch.contiguous_format
    if wanted in (suggest_memory_format(values), suggest_memory_format(weight)):
        return wanted
    return torch.contiguous_format


def _copy(call: KernelCall, tensor: torch.Tensor, memory_format: torch.memory_format) -> int:
    """The number of the copy of a tensor that is not in the format; -1 without one."""
    if tensor.is_contiguous(memory_format=memory_format):
        return -1
    return call.recorder.allocate(tensor.numel() * tensor.element_size())
