"""Convolutions."""

from __future__ import annotations

from typing import Any

from trainmem_backend.trace.kernels.registry import KernelCall, rule

__all__: list[str] = []


@rule("convolution.default", "convolution_backward.default")
def _convolution(call: KernelCall) -> Any:
    """The outputs alone: cuDNN picks an algorithm by rules of its own, and its workspace with it."""
    call.recorder.note(
        "the scratch memory of cuDNN's convolutions, held only while each runs, is not counted: cuDNN chooses it"
    )
    return call.outputs(call.result())
