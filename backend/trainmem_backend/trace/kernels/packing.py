"""Sequences of several lengths, packed step by step (PackedSequence.cpp)."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._python_dispatch import _disable_current_modes

from trainmem_backend.trace.kernels.registry import KernelCall, rule

__all__: list[str] = []

_FULL = (
    "the lengths of packed sequences come from the GPU, where a trace has no values: all are taken to be full"
)


@rule("_pack_padded_sequence.default")
def _pack(call: KernelCall) -> Any:
    """Runs of steps that equally many sequences have are copied where they are not in one piece, then joined."""
    padded, lengths, batch_first = call.args
    recorder = call.recorder
    steps = padded.transpose(0, 1) if batch_first else padded
    counts = _counts(call, lengths, steps.shape[0], steps.shape[1])
    item_bytes = steps[0, 0].numel() * steps.element_size()
    copies = []
    start = 0
    for end in range(1, len(counts) + 1):
        if end == len(counts) or counts[end] != counts[start]:
            if not steps[start:end, : counts[start]].is_contiguous():
                copies.append(recorder.allocate((end - start) * counts[start] * item_bytes))
            start = end
    packed = call.outputs(steps.new_empty((sum(counts), *steps.shape[2:])))
    for number in copies:
        recorder.free(number)
    with unset_fake_temporarily(), _disable_current_modes():
        return packed, torch.tensor(counts)


def _counts(call: KernelCall, lengths: torch.Tensor, most: int, batch: int) -> list[int]:
    """How many sequences have each step."""
    if isinstance(lengths, FakeTensor):
        call.recorder.note(_FULL)
        return [batch] * most
    with _disable_current_modes():
        known = lengths.tolist()
    return [sum(length > step for length in known) for step in range(max(known))]


@rule("_pack_padded_sequence_backward.default")
def _pack_backward(call: KernelCall) -> Any:
    """Zeros, into which every step is copied."""
    gradient, shape, _, batch_first = call.args
    if not batch_first:
        return call.outputs(gradient.new_empty(shape))
    return call.outputs(gradient.new_empty((shape[1], shape[0], *shape[2:]))).transpose(0, 1)
