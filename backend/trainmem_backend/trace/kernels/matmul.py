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
    result = call.outputs(call.result())
    _copies(call, *(t for t in call.args if isinstance(t, torch.Tensor) and t.dim() >= 2))
    _cublas(call)
    return result


@rule("addmm", "_addmm_activation")
def _addmm(call: KernelCall) -> Any:
    result = call.outputs(call.result())
    bias, left, right = call.args[:3]
    _copies(call, left, right)
    _cublas(call)
    if _runs_in_cublaslt(bias, right, call.kwargs.get("beta", 1)):
        call.workspace("cublaslt", call.traits.cublaslt_workspace_bytes)
    return result


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
