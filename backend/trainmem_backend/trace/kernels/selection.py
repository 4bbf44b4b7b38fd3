"""Ops whose results are as large as values say, which a trace does not have: see `Answers` for what it assumes."""

from __future__ import annotations

from typing import Any

import torch

from trainmem_backend.trace.kernels.cub import scan_bytes
from trainmem_backend.trace.kernels.registry import KernelCall, rule

__all__ = ["positions", "replace_masks"]

_COUNT_BYTES = 4
_SMALLEST_SUM = 4096
"""Up to here one block adds up 4-byte numbers alone (256 threads, 16 items each; cub::DeviceReduce)."""


def positions(call: KernelCall, mask: torch.Tensor, chosen: int | None = None) -> torch.Tensor:
    """Indices of the true elements, [chosen, dimensions], stored the other way round (Nonzero.cu).

    They are counted first, the count waits on the device until the indices are written; CUB's scratch for both
    is a prefix sum's at most. ``chosen`` is given where a mask was asked about before.
    """
    recorder = call.recorder
    if not mask.is_contiguous():
        copy = recorder.allocate(mask.numel() * mask.element_size())
    else:
        copy = -1
    rows = call.answers.chosen(mask) if chosen is None else chosen
    count = recorder.allocate(_COUNT_BYTES)
    scratch = scan_bytes(mask.numel(), _COUNT_BYTES)
    recorder.scratch(1 if mask.numel() <= _SMALLEST_SUM else scratch)
    indices = mask.new_empty((mask.dim(), rows), dtype=torch.int64)
    recorder.watch(indices)
    recorder.scratch(scratch)
    for number in (count, copy):
        recorder.free(number)
    return indices.t()


def replace_masks(call: KernelCall, indices: Any) -> list[torch.Tensor | None]:
    """Masks among indices become the positions they choose (expandTensors in IndexingUtils.h)."""
    found: list[torch.Tensor | None] = []
    for index in indices:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            found.extend(positions(call, index).unbind(1))
        else:
            found.append(index)
    return found


@rule("nonzero.default")
def _nonzero(call: KernelCall) -> Any:
    """See `positions`."""
    return positions(call, call.args[0])


@rule("masked_select.default")
def _masked_select(call: KernelCall) -> Any:
    """Indexing with the mask, both spread over each other's shape (masked_select_out_cuda_impl in Indexing.cu)."""
    tensor, mask = call.args
    shape = torch.broadcast_shapes(tensor.shape, mask.shape)
    chosen = min(shape.numel(), call.answers.chosen(mask) * (shape.numel() // max(1, mask.numel())))
    spread = mask.expand(shape)
    found = positions(call, spread, chosen)
    result = call.outputs(tensor.new_empty((chosen,)))
    del found
    return result


@rule("bincount.default")
def _bincount(call: KernelCall) -> Any:
    """Smallest and largest value are asked for, then come the bins: as many as the program wants at least."""
    values, weights = call.args[0], call.argument(1, "weights")
    bins = max(1, call.argument(2, "minlength", 0))
    for _ in range(2):
        call.recorder.scratch(values.element_size())
    dtype = torch.int64 if weights is None else weights.dtype
    return call.outputs(values.new_empty((bins,), dtype=dtype))


@rule("repeat_interleave.Tensor")
def _repeat_interleave(call: KernelCall) -> Any:
    """The repeats are summed up from the left, then the indices are written (Repeat.cu)."""
    repeats, size = call.args[0], call.argument(1, "output_size")
    sums = call.recorder.allocate(8 * repeats.numel())
    call.recorder.scratch(scan_bytes(repeats.numel(), 8))
    length = call.answers.sum(repeats) if size is None else int(size)
    result = call.outputs(repeats.new_empty((length,)))
    call.recorder.free(sums)
    return result


@rule(
    "_unique2.default", "unique_consecutive.default", "unique_dim.default", "unique_dim_consecutive.default"
)
def _unique(call: KernelCall) -> Any:
    """One value: what a program compares is taken to be the same. Scratch is left out."""
    values = call.args[0]
    inverse, counts = call.named("return_inverse"), call.named("return_counts")
    return call.outputs(
        (
            values.new_empty((1,)),
            values.new_empty(values.shape if inverse else (0,), dtype=torch.int64),
            values.new_empty((1,) if counts else (0,), dtype=torch.int64),
        )
    )
