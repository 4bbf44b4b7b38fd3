"""Embeddings: the gradient of a large one sorts its indices and sums rows in two steps."""

from __future__ import annotations

from typing import Any

from trainmem_backend.trace.kernels.cub import radix_sort_bytes, scan_bytes
from trainmem_backend.trace.kernels.registry import KernelCall, rule

__all__: list[str] = []

_ROWS_PER_THREAD = 10
_MOST_UNSORTED_INDICES = 3072
_MOST_THREADS = 1024
_ATOMIC_BLOCKS_PER_MULTIPROCESSOR = 4


@rule("embedding")
def _embedding(call: KernelCall) -> Any:
    """Indices that are not one run of memory, such as expanded ones, are copied first (index_select)."""
    result = call.result()
    indices = call.args[1]
    copy = -1 if indices.is_contiguous() else call.recorder.allocate(indices.numel() * indices.element_size())
    call.outputs(result)
    call.recorder.free(copy)
    return result


@rule("embedding_dense_backward")
def _embedding_backward(call: KernelCall) -> Any:
    """Up to 3,072 indices are scattered by one kernel; more are sorted (Embedding.cu)."""
    result = call.result()
    recorder = call.recorder
    gradient, indices = call.args[0], call.args[1]
    held = []
    if not gradient.is_contiguous():
        held.append(recorder.allocate(gradient.numel() * gradient.element_size()))
    if not indices.is_contiguous():
        held.append(recorder.allocate(indices.numel() * indices.element_size()))
    if indices.numel() <= _MOST_UNSORTED_INDICES:
        call.outputs(result)
    else:
        _sorted_backward(call, result)
    for number in reversed(held):
        recorder.free(number)
    return result


def _sorted_backward(call: KernelCall, result: Any) -> None:
    """Runs of equal indices are cut into parts of ten rows, summed in fp32, then summed once more.

    EmbeddingBackwardKernel.cu. Where there are few distinct rows (token types), parts are added to the
    gradient by atomics instead, through an fp32 copy of it when it is 16-bit.
    """
    gradient, indices, rows = call.args[0], call.args[1], call.args[2]
    recorder = call.recorder
    count, width, index_bytes = indices.numel(), gradient.shape[-1], indices.element_size()
    sorted_indices = recorder.allocate(count * index_bytes)
    original_indices = recorder.allocate(count * index_bytes)
    positions = recorder.allocate(count * index_bytes)
    recorder.scratch(radix_sort_bytes(count, index_bytes, index_bytes))
    recorder.free(positions)
    call.outputs(result)
    segments = min(count, rows)
    parts = count // _ROWS_PER_THREAD + segments
    held = [recorder.allocate(count * index_bytes), recorder.allocate(8)]
    recorder.scratch(count * index_bytes, scan_bytes(count, index_bytes, unique=True))
    held += [recorder.allocate(segments * index_bytes), recorder.allocate(segments * index_bytes)]
    recorder.scratch(scan_bytes(segments, index_bytes))
    held += [recorder.allocate(8), recorder.allocate(parts * index_bytes)]
    padded = -(-width // 32) * 32
    blocks = -(-segments * padded // min(padded, _MOST_THREADS))
    by_atomics = (
        blocks < call.traits.multiprocessors * _ATOMIC_BLOCKS_PER_MULTIPROCESSOR and parts > 4 * blocks
    )
    if not by_atomics:
        recorder.scratch(parts * width * 4)
    elif gradient.element_size() < 4:
        recorder.scratch(parts * index_bytes, rows * width * 4)
    else:
        recorder.scratch(parts * index_bytes)
    for number in (*reversed(held), original_indices, sorted_indices):
        recorder.free(number)
