"""Does a feature really work here: one small run of each, because a warning or a version proves neither."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["FEATURES", "try_feature"]


def try_feature(name: str) -> dict[str, Any]:
    """Run one of `FEATURES`. Raises what the feature raises."""
    return FEATURES[name]()


def _sdpa(kernel: str) -> dict[str, Any]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    heads = torch.randn(2, 4, 256, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    with sdpa_kernel(SDPBackend.__members__[kernel]):
        out = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        torch.autograd.backward(out.sum())
    torch.cuda.synchronize()
    return {}


def _default_sdpa() -> dict[str, Any]:
    from trainmem_backend.measure.tasks.hooks import AttentionWatch

    seen = {}
    for dtype in (torch.bfloat16, torch.float32):
        for grouped in (False, True):
            query = torch.randn(2, 8, 256, 64, device="cuda", dtype=dtype)
            key = torch.randn(2, 2 if grouped else 8, 256, 64, device="cuda", dtype=dtype)
            with AttentionWatch() as watch:
                torch.nn.functional.scaled_dot_product_attention(
                    query, key, key, is_causal=True, enable_gqa=grouped
                )
            name = f"{str(dtype).removeprefix('torch.')}{', grouped' if grouped else ''}"
            seen[name] = next(iter(watch.seen), "math")
    return {"chosen_kernels": seen}


def _bitsandbytes() -> dict[str, Any]:
    import bitsandbytes as bnb

    layer = bnb.nn.Linear4bit(256, 256, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4").cuda()
    batch = torch.randn(8, 256, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    layer(batch).sum().backward()
    parameter = torch.nn.Parameter(torch.randn(256, 256, device="cuda"))
    optimizer = bnb.optim.AdamW8bit([parameter])
    parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    torch.cuda.synchronize()
    return {"version": bnb.__version__}


def _triton() -> dict[str, Any]:
    @torch.compile(dynamic=False)
    def scaled(values: torch.Tensor) -> torch.Tensor:
        return torch.sin(values) * 2 + 1

    result = scaled(torch.ones(4096, device="cuda"))
    torch.cuda.synchronize()
    import triton

    return {"version": triton.__version__, "sum": round(float(result.sum()), 2)}


def _liger() -> dict[str, Any]:
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    weight = torch.randn(1024, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    hidden = torch.randn(64, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    labels = torch.randint(0, 1024, (64,), device="cuda")
    LigerFusedLinearCrossEntropyLoss()(weight, hidden, labels).backward()
    torch.cuda.synchronize()
    return {}


FEATURES: dict[str, Callable[[], dict[str, Any]]] = {
    "sdpa": _default_sdpa,
    "sdpa-flash": lambda: _sdpa("FLASH_ATTENTION"),
    "sdpa-memory-efficient": lambda: _sdpa("EFFICIENT_ATTENTION"),
    "sdpa-cudnn": lambda: _sdpa("CUDNN_ATTENTION"),
    "sdpa-math": lambda: _sdpa("MATH"),
    "bitsandbytes": _bitsandbytes,
    "triton": _triton,
    "liger": _liger,
}
"""Each feature's run. One that fails turns the rows that need it into ``skipped`` with its words as the
reason."""
