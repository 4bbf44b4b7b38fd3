"""The gradient of an embedding: sorted indices and partial sums."""

from __future__ import annotations

from typing import Any

from trainmem_backend.trace.kernels.registry import KernelCall, rule

__all__: list[str] = []

_ROWS_PER_THREAD = 10
_SMALL_INDEX_COUNT = 3072


@rule("embedding_dense_backward")
def _embedding_backward(call: KernelCall) -> Any:
    """Up to 3,072 indices one kernel scatters; beyond, indices are sorted and partial sums kept in fp32.

    aten/src/ATen/native/cuda/Embedding.cu and EmbeddingBackwardKernel.cu.
    """
    result = call.result()
    gradient, indices, rows = call.args[0], call.args[1], call.args[2]
    recorder = call.recorder
    count = indices.numel()
    if not gradient.is_contiguous():
        gradient_copy = recorder.allocate(gradient.numel() * gradient.element_size())
    else:
        gradient_copy = -1
    if count <= _SMALL_INDEX_COUNT:
        call.outputs(result)
        recorder.free(gradient_copy)
        return result
    width = gradient.shape[-1]
    index_bytes = indices.element_size()
    sorted_indices = recorder.allocate(count * index_bytes)
    original_indices = recorder.allocate(count * index_bytes)
    positions = recorder.allocate(count * index_bytes)
    recorder.free(positions)
    call.outputs(result)
    segments = min(count, rows)
    partials = count // _ROWS_PER_THREAD + segments
    held = [
        recorder.allocate(count * index_bytes),
        recorder.allocate(8),
        recorder.allocate(segments * index_bytes),
        recorder.allocate(segments * index_bytes),
        recorder.allocate(8),
        recorder.allocate(partials * index_bytes),
        recorder.allocate(partials * width * 4),
    ]
    for number in reversed(held):
        recorder.free(number)
    recorder.free(original_indices)
    recorder.free(sorted_indices)
    recorder.free(gradient_copy)
    return result
