"""Which attention kernel `scaled_dot_product_attention` runs on a GPU, and its call."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from trainmem_backend.trace.gpu import GpuTraits

__all__ = ["choose_kernel", "run_kernel"]

aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)


def choose_kernel(
    traits: GpuTraits,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    is_causal: bool,
    enable_gqa: bool,
) -> str:
    """ "cudnn", "flash", "efficient" or "math": the first in the GPU's order whose conditions hold.

    The conditions are those of aten/src/ATen/native/transformers/cuda/sdp_utils.cpp; the program may have
    switched kernels off (`torch.nn.attention.sdpa_kernel`).
    """
    for kernel in traits.attention_order:
        if kernel == "math" or (
            _ENABLED[kernel]()
            and _CONDITIONS[kernel](traits, query, key, value, mask, dropout, is_causal, enable_gqa)
        ):
            return kernel
    return "math"


def _same_length_heads(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, enable_gqa: bool) -> bool:
    if enable_gqa:
        return key.shape[-3] == value.shape[-3] and query.shape[-3] % key.shape[-3] == 0
    return query.shape[-3] == key.shape[-3] == value.shape[-3]


def _cudnn(
    traits: GpuTraits,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    is_causal: bool,
    enable_gqa: bool,
) -> bool:
    """cuDNN wants half precision and head dims in multiples of 8, up to 256 (128 before Hopper)."""
    head_dim = query.shape[-1]
    limit = 256 if traits.capability[0] in (9, 10) else 128
    return (
        traits.capability >= (8, 0)
        and query.dim() == 4
        and query.dtype in _HALF
        and head_dim % 8 == 0
        and value.shape[-1] % 8 == 0
        and head_dim <= limit
        and value.shape[-1] <= limit
        and query.shape[-2] > 1
        and key.shape[-2] > 1
        and not (mask is not None and mask.requires_grad)
        and _same_length_heads(query, key, value, enable_gqa)
    )


def _flash(
    traits: GpuTraits,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    is_causal: bool,
    enable_gqa: bool,
) -> bool:
    """FlashAttention 2 takes no mask, half precision, and equal head dims up to 256.

    Where shared memory is small it does not train heads of 193 to 224 elements, nor wider ones with dropout
    (check_requires_grad_and_head_dim_gt192_constraints_on_sm86_89_or_120).
    """
    width = query.shape[-1]
    is_small = traits.capability in ((8, 6), (8, 9)) or traits.capability[0] == 12
    trains = any(t.requires_grad for t in (query, key, value))
    if is_small and trains and (192 < width <= 224 or (width > 224 and dropout > 0)):
        return False
    return (
        traits.capability >= (8, 0)
        and query.dim() == 4
        and query.dtype in _HALF
        and mask is None
        and query.shape[-1] == key.shape[-1] == value.shape[-1] <= 256
        and _same_length_heads(query, key, value, enable_gqa)
    )


def _efficient(
    traits: GpuTraits,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    is_causal: bool,
    enable_gqa: bool,
) -> bool:
    """The memory-efficient kernel takes every dtype (bf16 from Ampere on) and mask, but not grouped heads."""
    alignment = 16 // query.element_size() if query.dtype in _HALF else 4
    return (
        query.dim() == 4
        and (query.dtype is not torch.bfloat16 or traits.capability >= (8, 0))
        and query.dtype in (*_HALF, torch.float32)
        and not enable_gqa
        and query.shape[-1] == key.shape[-1]
        and query.shape[-1] % alignment == 0
        and value.shape[-1] % alignment == 0
        and query.shape[-3] == key.shape[-3] == value.shape[-3]
    )


_ENABLED: dict[str, Callable[[], bool]] = {
    "cudnn": torch.backends.cuda.cudnn_sdp_enabled,
    "flash": torch.backends.cuda.flash_sdp_enabled,
    "efficient": torch.backends.cuda.mem_efficient_sdp_enabled,
}
_CONDITIONS = {"cudnn": _cudnn, "flash": _flash, "efficient": _efficient}


def run_kernel(
    kernel: str,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    is_causal: bool,
    *,
    scale: float | None,
    enable_gqa: bool,
    adding_in_place: Callable[[], AbstractContextManager[None]],
) -> Any:
    """Call the kernel's own op, as `scaled_dot_product_attention` does after choosing it.

    The math path adds the mask to the scores in place, except for tensor subclasses, fake ones included:
    ``adding_in_place`` makes additions cost nothing inside.
    """
    needs_lse = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    bias = _additive(mask, query.dtype)
    if kernel == "cudnn":
        return aten._scaled_dot_product_cudnn_attention(
            query, key, value, bias, needs_lse, dropout, is_causal, False, scale=scale
        )[0]
    if kernel == "flash":
        width = query.shape[-1]
        extra = -width % 8
        if extra:
            query, key, value = (torch.nn.functional.pad(t, [0, extra]) for t in (query, key, value))
            scale = scale if scale is not None else width**-0.5
        out = aten._scaled_dot_product_flash_attention(
            query, key, value, dropout, is_causal, False, scale=scale
        )[0]
        return out[..., :width] if extra else out
    if kernel == "efficient":
        if bias is not None:
            bias = _padded_bias(bias, query, key)
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, needs_lse, dropout, is_causal, scale=scale
        )[0]
    with adding_in_place():
        return aten._scaled_dot_product_attention_math(
            query, key, value, bias, dropout, is_causal, None, scale=scale, enable_gqa=enable_gqa
        )[0]


def _additive(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """convert_boolean_attn_mask: a bool mask becomes 0 and -inf in the query's dtype."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    return torch.where(mask, 0.0, aten.scalar_tensor.default(float("-inf"), dtype=dtype))


def _padded_bias(bias: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """preprocess_mask (ATen/native/transformers/attention.cpp): a view of rows filled up to whole 8 elements.

    It looks at the strides, so that a view of rows filled up before is taken as it is.
    """
    length, (*outer, innermost) = bias.shape[-1], bias.stride()
    if innermost != 1 or any(stride % 8 for stride in outer):
        bias = torch.nn.functional.pad(bias, [0, 8 - length % 8])[..., :length]
    return bias.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
