"""The CTC loss: its table of partial sums is as wide as the longest target (LossCTC.cu)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from trainmem_backend.trace.kernels.registry import KernelCall, rule

__all__: list[str] = []

_LENGTH_BYTES = 8
_LONGEST = (
    "the lengths of CTC targets come from the GPU, where a trace has no values: all are taken to be equal"
)


@rule("_ctc_loss.default", "_ctc_loss.Tensor")
def _ctc_loss(call: KernelCall) -> Any:
    """Lengths and offsets go to the device; then the table, [batch, steps, 2 x longest target + 1], and the losses."""
    scores, targets, _, lengths = call.args[:4]
    steps, batch, _ = scores.shape
    recorder = call.recorder
    held = [recorder.allocate(_LENGTH_BYTES * batch) for _ in range(3)]
    table = call.outputs(scores.new_empty((batch, steps, 2 * _longest(call, targets, lengths, batch) + 1)))
    losses = call.outputs(scores.new_empty((batch,)))
    for number in reversed(held):
        recorder.free(number)
    return losses, table


def _longest(
    call: KernelCall, targets: torch.Tensor, lengths: Sequence[int] | torch.Tensor, batch: int
) -> int:
    if isinstance(lengths, FakeTensor):
        call.recorder.note(_LONGEST)
        return targets.shape[1] if targets.dim() > 1 else -(-targets.numel() // batch)
    with _disable_current_modes():
        return max(int(length) for length in lengths)


@rule("_ctc_loss_backward.default", "_ctc_loss_backward.Tensor")
def _ctc_loss_backward(call: KernelCall) -> Any:
    """A second table, and the gradient."""
    scores, table = call.named("log_probs"), call.named("log_alpha")
    sums = call.recorder.allocate(table.numel() * table.element_size())
    gradient = call.outputs(scores.new_empty(scores.shape))
    call.recorder.free(sums)
    return gradient
