"""Reductions: many elements per output are split over thread blocks that meet in global memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cmp_to_key
from typing import Any

import torch

from trainmem_backend.trace.gpu import GpuTraits
from trainmem_backend.trace.kernels.registry import KernelCall, rule

__all__ = ["reduction_scratch"]

_MAX_THREADS = 512
_WARP = 32
_MIN_VALUES_PER_THREAD = 16
_MAX_VALUES_PER_THREAD = 256


def _last_power_of_two(value: int) -> int:
    return 1 << (value.bit_length() - 1) if value > 0 else 1


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _iteration_dims(
    shape: Sequence[int], strides: Sequence[int], reduced: set[int]
) -> list[tuple[int, int, int, bool]]:
    """(size, input stride, output stride, reduced) as TensorIterator orders and merges the dimensions.

    Reduced dimensions come first, then ascending strides; neighbours merge where they are one run in memory
    (aten/src/ATen/TensorIterator.cpp, reorder_dimensions and coalesce_dimensions).
    """
    output_strides = [0] * len(shape)
    run = 1
    for dim in reversed(range(len(shape))):
        if dim not in reduced:
            output_strides[dim] = run
            run *= shape[dim]
    dims = [
        (shape[d], strides[d] if shape[d] > 1 else 0, output_strides[d], d in reduced)
        for d in reversed(range(len(shape)))
    ]

    def order(a: tuple[int, int, int, bool], b: tuple[int, int, int, bool]) -> int:
        if a[3] != b[3]:
            return -1 if a[3] else 1
        for x, y in ((a[2], b[2]), (a[1], b[1])):
            if x and y and x != y:
                return -1 if x < y else 1
            if x and x == y and a[0] != b[0]:
                return -1 if a[0] < b[0] else 1
        return 0

    dims.sort(key=cmp_to_key(order))
    merged: list[tuple[int, int, int, bool]] = []
    for entry in dims:
        if merged:
            size, stride, out_stride, is_reduced = merged[-1]
            if entry[0] == 1:
                continue
            if size == 1:
                merged[-1] = entry
                continue
            if is_reduced == entry[3] and size * stride == entry[1] and size * out_stride == entry[2]:
                merged[-1] = (size * entry[0], stride, out_stride, is_reduced)
                continue
        merged.append(entry)
    return merged


def reduction_scratch(
    traits: GpuTraits,
    tensor: torch.Tensor,
    reduced: set[int],
    *,
    accumulator_bytes: int = 4,
    values: int = 4,
) -> tuple[int, int]:
    """Bytes of the staging buffer and of the semaphores of one reduction kernel; (0, 0) when it needs none.

    The launch configuration of ``setReduceConfig`` (aten/src/ATen/native/cuda/Reduce.cuh): threads are first
    spread over outputs or over the contiguous inputs, then over warps, and when every thread would still sum
    256 values or more while the grid leaves the GPU idle, over blocks: these meet in global memory.
    """
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    total = tensor.numel()
    if total == 0:
        return 0, 0
    dims = _iteration_dims(shape, strides, reduced)
    kept = [d for d in dims if not d[3]]
    folded = [d for d in dims if d[3]]
    outputs = 1
    for dim in kept:
        outputs *= dim[0]
    inputs = total // outputs
    if not dims:
        return 0, 0
    on_fastest = not kept or (bool(folded) and folded[0][1] < kept[0][1])
    if on_fastest:
        dim0, dim1, stride = inputs, outputs, dims[0][1]
    else:
        dim0, dim1, stride = outputs, inputs, kept[0][1]
    vector = 1
    if stride == 1:
        if on_fastest and dim0 >= 128 and len(folded) == 1:
            dim0 //= values
        elif not on_fastest:
            vector = _output_vector(tensor, dims, kept[0])
            dim0 //= vector
    limit = _MAX_THREADS // vector
    dim0_pow2 = _last_power_of_two(dim0) if dim0 < limit else limit
    dim1_pow2 = _last_power_of_two(dim1) if dim1 < limit else limit
    width = min(dim0_pow2, _WARP)
    height = min(dim1_pow2, limit // width)
    width = min(dim0_pow2, limit // height)
    step_input = width if on_fastest else 1
    step_output = 1 if on_fastest else width
    across_warps = _ceil_div(inputs, step_input) >= min(height * 16, _MAX_VALUES_PER_THREAD)
    if across_warps:
        step_input *= height
    else:
        step_output *= height
    values_per_thread = _ceil_div(inputs, step_input)
    grid = _ceil_div(outputs // vector, step_output)
    target = traits.multiprocessors * (traits.threads_per_multiprocessor // (width * height))
    if not across_warps or values_per_thread < _MAX_VALUES_PER_THREAD or grid > target:
        return 0, 0
    blocks = max(
        min(_ceil_div(target, grid), _ceil_div(values_per_thread, _MIN_VALUES_PER_THREAD)),
        _ceil_div(values_per_thread, _MAX_VALUES_PER_THREAD),
    )
    if blocks <= 1:
        return 0, 0
    buffer = accumulator_bytes * outputs * blocks
    if not on_fastest:
        buffer *= width * vector
    return buffer, 4 * grid


def _output_vector(
    tensor: torch.Tensor, dims: list[tuple[int, int, int, bool]], output_dim: tuple[int, int, int, bool]
) -> int:
    vector = 4
    for value in (
        tensor.storage_offset(),
        output_dim[0],
        *(dim[1] for dim in dims if dim is not output_dim),
    ):
        while value % vector:
            vector //= 2
    return vector


def _reduced_dims(tensor: torch.Tensor, dims: Any) -> set[int]:
    if dims is None or dims == []:
        return set(range(tensor.dim()))
    if isinstance(dims, int):
        dims = [dims]
    return {d % tensor.dim() for d in dims} if tensor.dim() else set()


def _reduce(call: KernelCall, dims: Any, accumulator_bytes: int = 4) -> Any:
    result = call.outputs(call.result())
    tensor = call.args[0]
    values = 8 if tensor.element_size() == 2 else 4
    if tensor.dtype in (torch.float64, torch.int64):
        accumulator_bytes = max(accumulator_bytes, 8)
    if result.dtype != tensor.dtype and not tensor.is_floating_point():
        # Integers are first converted to the result's dtype (make_reduction_from_out_ty in ReduceOpsUtils.h).
        call.recorder.scratch(tensor.numel() * result.element_size())
        return result
    sizes = reduction_scratch(
        call.traits,
        tensor,
        _reduced_dims(tensor, dims),
        accumulator_bytes=accumulator_bytes,
        values=values,
    )
    if sizes[0]:
        call.recorder.scratch(*sizes)
    return result


@rule("sum.dim_IntList", "mean.dim", "amax", "amin", "all.dim", "any.dim", "prod.dim_int")
def _reduce_some(call: KernelCall) -> Any:
    return _reduce(call, call.argument(1, "dim"))


@rule(
    "sum.default", "mean.default", "max.default", "min.default", "all.default", "any.default", "prod.default"
)
def _reduce_all(call: KernelCall) -> Any:
    return _reduce(call, None)


@rule("linalg_vector_norm")
def _vector_norm(call: KernelCall) -> Any:
    return _reduce(call, call.argument(2, "dim"))


@rule("norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype")
def _norm(call: KernelCall) -> Any:
    return _reduce(call, call.argument(2, "dim"))


_FOREACH_CHUNK = 65536


@rule("_foreach_norm.Scalar")
def _foreach_norm(call: KernelCall) -> Any:
    """Partial sums of every chunk of 65,536 elements, then one tensor a norm (ForeachReduceOp.cu).

    Every tensor gets room for as many partial sums as the largest one has.
    """
    tensors = call.args[0]
    result = call.result()
    chunks = max(_ceil_div(tensor.numel(), _FOREACH_CHUNK) for tensor in tensors)
    partial_bytes = max(4, result[0].element_size())
    partials = call.recorder.allocate(len(tensors) * chunks * partial_bytes)
    call.outputs(result)
    call.recorder.free(partials)
    return result
