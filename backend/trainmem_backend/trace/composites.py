"""Composite ops that take another path on CUDA: attention, dropout, RMS and group normalisation."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from trainmem_backend.trace.attention import choose_kernel, run_kernel
from trainmem_backend.trace.record_mode import RecordMode

__all__ = ["cuda_composites"]

aten = torch.ops.aten


class _FusedRmsNorm(torch.autograd.Function):
    """`_fused_rms_norm` and its gradient as CUDA's autograd has them; on the CPU the op is a composite."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        normalized_shape: list[int],
        weight: torch.Tensor | None,
        eps: float | None,
    ) -> torch.Tensor:
        """Keeps the input, the weight and the reciprocal root mean square of every row."""
        with torch._C._AutoDispatchBelowAutograd():
            result, scale = aten._fused_rms_norm(tensor, normalized_shape, weight, eps)
        ctx.save_for_backward(tensor, weight, scale)
        ctx.normalized_shape = normalized_shape
        normalized: torch.Tensor = result
        return normalized

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        """Of the input and the weight."""
        tensor, weight, scale = ctx.saved_tensors
        needed = [ctx.needs_input_grad[0], weight is not None and ctx.needs_input_grad[2]]
        of_tensor, of_weight = aten._fused_rms_norm_backward(
            gradients[0], tensor, ctx.normalized_shape, scale, weight, needed
        )
        return of_tensor, None, of_weight, None


@contextlib.contextmanager
def cuda_composites(record_mode: RecordMode) -> Iterator[None]:
    """Inside, attention, dropout and some normalisations become the ops that CUDA runs."""

    traits, is_device = record_mode.traits, record_mode.recorder.is_device

    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        kernel = choose_kernel(traits, query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
        return run_kernel(
            kernel,
            query,
            key,
            value,
            attn_mask,
            dropout_p,
            is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
            adding_in_place=record_mode.adding_in_place,
        )

    def dropout(tensor: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        """at::dropout: the fused kernel needs 0 < p < 1 and at least one element."""
        if p == 0 or not train or tensor.numel() == 0:
            return tensor
        if p < 1:
            result: torch.Tensor = aten.native_dropout(tensor, p, train)[0]
            return result
        return tensor * torch.zeros_like(tensor)

    def rms_norm(
        tensor: torch.Tensor,
        normalized_shape: list[int],
        weight: torch.Tensor | None = None,
        eps: float | None = None,
    ) -> torch.Tensor:
        """at::rms_norm: one fused kernel, unless the weight has another dtype (rms_norm_symint in layer_norm.cpp)."""
        if weight is None or weight.dtype == tensor.dtype:
            result: torch.Tensor = _FusedRmsNorm.apply(tensor, normalized_shape, weight, eps)  # type: ignore[no-untyped-call]
            return result
        dims = tuple(range(tensor.dim() - len(normalized_shape), tensor.dim()))
        wide = tensor.to(torch.promote_types(tensor.dtype, torch.float32))
        smallest = torch.finfo(wide.dtype).eps if eps is None else eps
        scale = torch.rsqrt(wide.pow(2).mean(dims, keepdim=True).add_(smallest))
        return wide.mul(scale).mul(weight).type_as(tensor)

    def group_norm(
        tensor: torch.Tensor,
        num_groups: int,
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        eps: float = 1e-5,
        cudnn_enabled: bool = True,
    ) -> torch.Tensor:
        """at::group_norm: CUDA's kernel knows no channels-last (group_norm.cpp)."""
        rows, channels = tensor.shape[:2]
        inner = tensor.shape[2:].numel()
        whole = tensor.contiguous()
        result: torch.Tensor = aten.native_group_norm(
            whole, weight, bias, rows, channels, inner, num_groups, eps
        )[0]
        return result

    def softmax(tensor: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """at::softmax: CUDA's kernel reads fp16 and writes fp32 (SoftMax.cpp)."""
        widens = dtype is torch.float32 and tensor.dtype is torch.float16 and is_device(tensor)
        result: torch.Tensor = aten._softmax(
            tensor if widens or dtype is None else tensor.to(dtype), dim, widens
        )
        return result

    def log_softmax(tensor: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """at::log_softmax, likewise."""
        widens = dtype is torch.float32 and tensor.dtype is torch.float16 and is_device(tensor)
        result: torch.Tensor = aten._log_softmax(
            tensor if widens or dtype is None else tensor.to(dtype), dim, widens
        )
        return result

    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for key in ("AutogradCPU", "CPU"):
                library.impl("scaled_dot_product_attention", attention, key)
                library.impl("dropout", dropout, key)
                library.impl("rms_norm", rms_norm, key)
                library.impl("group_norm", group_norm, key)
                library.impl("softmax.int", softmax, key)
                library.impl("log_softmax.int", log_softmax, key)
        yield
    finally:
        library._destroy()
