"""Random weights drawn in place, so that loading a model takes the same memory under every torch."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from unittest import mock

import torch

__all__ = ["drawn_in_place"]


@contextlib.contextmanager
def drawn_in_place() -> Iterator[None]:
    """Inside, transformers draws truncated normal weights (ModernBERT's) without temporaries.

    From torch 2.12 on `torch.nn.init.trunc_normal_` draws again whatever lies outside of the bounds: three masks
    and two copies as large as the tensor, as often as chance wants. A checkpoint that is read makes none of them,
    and random weights stand in for one here.
    """
    from transformers import initialization

    functions = getattr(initialization, "TORCH_INIT_FUNCTIONS", {})
    with mock.patch.dict(functions, trunc_normal_=_trunc_normal_):
        yield


@torch.no_grad()
def _trunc_normal_(
    tensor: torch.Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """The inverse of the distribution function at uniform numbers, as torch drew them until 2.11."""
    low, high = (math.erf((bound - mean) / (std * math.sqrt(2.0))) for bound in (a, b))
    tensor.uniform_(low, high, generator=generator).erfinv_()
    return tensor.mul_(std * math.sqrt(2.0)).add_(mean).clamp_(min=a, max=b)
