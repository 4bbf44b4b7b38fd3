"""Composite ops that take another path on CUDA: attention and dropout."""

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


@contextlib.contextmanager
def cuda_composites(record_mode: RecordMode) -> Iterator[None]:
    """Inside, `scaled_dot_product_attention` and `dropout` become the ops that CUDA runs."""

    traits = record_mode.traits

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

    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for key in ("AutogradCPU", "CPU"):
                library.impl("scaled_dot_product_attention", attention, key)
                library.impl("dropout", dropout, key)
        yield
    finally:
        library._destroy()
