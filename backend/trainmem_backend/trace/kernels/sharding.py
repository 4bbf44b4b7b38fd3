"""Kernels that copy many tensors at once read their addresses and sizes from device memory (TensorShape.cu)."""

from __future__ import annotations

from math import isqrt
from typing import Any

from trainmem_backend.trace.kernels.registry import KernelCall, rule

__all__: list[str] = []

_THREADS, _BYTES_PER_THREAD = 128, 16
_TILE_BYTES = _THREADS * _BYTES_PER_THREAD


@rule("fsdp::split_with_sizes_copy")
def _split_copy(call: KernelCall) -> Any:
    """Each piece of every row is copied by blocks of 2 KiB; more than two waves of blocks do several rounds."""
    source, sizes = call.args[0], call.args[1]
    result = call.result()
    rows = source.shape[0]
    pieces = [size * source.element_size() for size in sizes]
    blocks = rows * sum(-(-piece // _TILE_BYTES) for piece in pieces)
    traits = call.traits
    most = traits.multiprocessors * traits.threads_per_multiprocessor // _THREADS * 2
    rounds = -(-blocks // most)
    rows_each = min(isqrt(max(rounds - 1, 0)) + 1, rows)
    tile = _TILE_BYTES * -(-rounds // rows_each)
    call.recorder.scratch(8 * (4 * len(pieces) + 1 + sum(-(-piece // tile) for piece in pieces)))
    return result


@rule("fsdp::chunk_cat")
def _chunk_cat(call: KernelCall) -> Any:
    """Six numbers for each tensor, and one for each block."""
    tensors, chunks, out = call.args[0], call.argument(2, "num_chunks"), call.argument(3, "out")
    result = call.result()
    pieces = [-(-t.shape[0] // chunks) * (t.numel() // t.shape[0]) * out.element_size() for t in tensors]
    blocks = sum(-(-piece // _TILE_BYTES) for piece in pieces)
    call.recorder.scratch(8 * (6 * len(tensors) + 2 + blocks))
    return result
