"""Convolutions."""

from __future__ import annotations

from typing import Any

import torch

from trainmem_backend.trace.kernels.registry import KernelCall, rule

__all__: list[str] = []


_ONE_SPATIAL_DIMENSION = 3
_NOT_COUNTED = (
    "the scratch memory of cuDNN's convolutions, held only while each runs, is not counted: cuDNN chooses it"
)


@rule("convolution.default")
def _convolution(call: KernelCall) -> Any:
    """The output, and while it runs a copy of a row of values that is not in one piece.

    With one spatial dimension the input is made contiguous, lest it pass for channels-last, and so the output is
    (_convolution in Convolution.cpp). cuDNN picks an algorithm by rules of its own, and its workspace with it.
    """
    call.recorder.note(_NOT_COUNTED)
    copy = call.contiguous_copy(call.args[0]) if _in_rows(call.args[0]) else -1
    result = call.result()
    if copy >= 0 and not result.is_contiguous():
        result = result.new_empty(result.shape)
    call.outputs(result)
    call.recorder.free(copy)
    return result


@rule("convolution_backward.default")
def _convolution_backward(call: KernelCall) -> Any:
    """As forward, of the input, and of the gradient of the output; a depthwise kernel's weight comes first."""
    call.recorder.note(_NOT_COUNTED)
    gradient, values = call.args[:2]
    copies = [call.contiguous_copy(tensor) for tensor in (values, gradient) if _in_rows(values)]
    result = call.result()
    if call.named("groups") == values.shape[1]:
        call.outputs((result[1], result[0], result[2]))
    else:
        call.outputs(result)
    for copy in reversed(copies):
        call.recorder.free(copy)
    return result


def _in_rows(values: torch.Tensor) -> bool:
    return values.dim() == _ONE_SPATIAL_DIMENSION
