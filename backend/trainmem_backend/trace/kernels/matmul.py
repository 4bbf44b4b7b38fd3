"""Matrix products: outputs, then the library's workspace at its first use in a thread."""

from __future__ import annotations

from typing import Any

import torch

from trainmem_backend.trace.kernels.registry import KernelCall, rule

__all__: list[str] = []


def _cublas(call: KernelCall) -> None:
    call.workspace("cublas", call.traits.cublas_workspace_bytes)


@rule("mm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot")
def _gemm(call: KernelCall) -> Any:
    operands = [t for t in call.args if isinstance(t, torch.Tensor)]
    _require_one_dtype(*operands[-2:])
    result = call.outputs(call.result())
    _copies(call, *(t for t in operands if t.dim() >= 2))
    _cublas(call)
    return result


@rule("addmm", "_addmm_activation")
def _addmm(call: KernelCall) -> Any:
    bias, left, right = call.args[:3]
    _require_one_dtype(left, right)
    result = call.outputs(call.result())
    _copies(call, left, right)
    _cublas(call)
    if _runs_in_cublaslt(bias, right, call.kwargs.get("beta", 1)):
        call.workspace("cublaslt", call.traits.cublaslt_workspace_bytes)
    return result


@rule("linear")
def _linear(call: KernelCall) -> Any:
    """A linear layer inside a custom op, where nothing splits it into products: mm, or addmm with a bias."""
    result = call.outputs(call.result())
    weight, bias = call.args[1], call.argument(2, "bias")
    _cublas(call)
    if bias is not None and _runs_in_cublaslt(bias, weight.t(), 1):
        call.workspace("cublaslt", call.traits.cublaslt_workspace_bytes)
    return result


def _require_one_dtype(left: torch.Tensor, right: torch.Tensor) -> None:
    """Fake kernels before torch 2.12 take any two."""
    if left.dtype is not right.dtype:
        raise RuntimeError(
            f"expected m1 and m2 to have the same dtype, but got: {left.dtype} != {right.dtype}"
        )


def _runs_in_cublaslt(bias: torch.Tensor, right: torch.Tensor, beta: Any) -> bool:
    """A one-dimensional bias is fused into the product's epilogue (Blas.cpp, addmm_out_cuda_impl)."""
    return (
        beta == 1
        and bias.dim() == 1
        and bias.shape[0] == right.shape[1]
        and bias.is_contiguous()
        and right.shape[0] > 1
        and right.shape[1] > 1
    )


def _copies(call: KernelCall, *operands: torch.Tensor) -> None:
    """cuBLAS needs one unit stride and a leading dimension that covers the other size; else a copy."""
    sizes = [t.numel() * t.element_size() for t in operands if not _fits_cublas(t)]
    if sizes:
        call.recorder.scratch(*sizes)


def _fits_cublas(tensor: torch.Tensor) -> bool:
    rows, columns = tensor.shape[-2:]
    row_stride, column_stride = tensor.stride()[-2:]
    return (column_stride == 1 and row_stride >= max(1, columns)) or (
        row_stride == 1 and column_stride >= max(1, rows)
    )


_DESCRIPTORS_PER_MULTIPROCESSOR = 4
_DESCRIPTOR_BYTES = 128


@rule("_grouped_mm")
def _grouped_mm(call: KernelCall) -> Any:
    """bf16 on Hopper: pointers, sizes and strides of every group, and tensor maps for every multiprocessor.

    GroupMM.cu: three pointers, three ints and three 64-bit strides a group, pointers in whole 16 bytes; then
    CUTLASS' workspace. Other dtypes run one cuBLAS product a group.
    """
    left, right = call.args[0], call.args[1]
    result = call.outputs(_grouped_output(call, left, right))
    if left.dtype is not torch.bfloat16 or call.traits.capability[0] not in (9, 10):
        _cublas(call)
        return result
    offsets = call.argument(2, "offs")
    groups = offsets.shape[0] if offsets is not None else right.shape[0]
    arguments = 3 * 8 * (groups + groups % 2) + 3 * 4 * groups + 3 * 8 * groups
    tensor_maps = call.traits.multiprocessors * _DESCRIPTORS_PER_MULTIPROCESSOR * _DESCRIPTOR_BYTES
    call.recorder.scratch(arguments, tensor_maps)
    return result


def _grouped_output(call: KernelCall, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The result, of any dtype: PyTorch's own fake kernel knows bf16 only. Rows are padded to 16 bytes."""
    offsets = call.argument(2, "offs")
    shape = [left.shape[-2], right.shape[-1]]
    if left.dim() == right.dim():
        shape.insert(0, offsets.shape[0] if left.dim() == 2 else left.shape[0])
    dtype = call.kwargs.get("out_dtype") or left.dtype
    unit = 16 // dtype.itemsize
    padded = -(-shape[-1] // unit) * unit
    strides = [padded, 1] if len(shape) == 2 else [shape[1] * padded, padded, 1]
    return left.new_empty_strided(shape, strides, dtype=dtype)
