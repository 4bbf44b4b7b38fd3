"""Tensor types from before dtypes, such as `torch.cuda.FloatTensor`, which older scripts still call."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["LegacyType", "legacy_types"]

_DTYPES = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "LongTensor": torch.int64,
    "IntTensor": torch.int32,
    "ShortTensor": torch.int16,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "BoolTensor": torch.bool,
}


class LegacyType(type):
    """One of them: given sizes it makes an uninitialised tensor on the device, given values a copy of them."""

    dtype: torch.dtype

    def __call__(cls, *args: Any) -> torch.Tensor:
        """``FloatTensor(2, 3)``, ``FloatTensor([2.0, 3.0])``, ``FloatTensor(tensor)``."""
        if len(args) == 1 and isinstance(args[0], torch.Tensor):
            return args[0].to("cuda", cls.dtype)
        if len(args) == 1 and not isinstance(args[0], int | torch.Size):
            return torch.tensor(args[0], dtype=cls.dtype, device="cuda")
        sizes = args[0] if args and isinstance(args[0], torch.Size) else args
        return torch.empty(tuple(sizes) or (0,), dtype=cls.dtype, device="cuda")

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype is cls.dtype


def legacy_types() -> dict[str, LegacyType]:
    """What to put in place of `torch.cuda`'s types, by name."""
    return {name: LegacyType(name, (), {"dtype": dtype}) for name, dtype in _DTYPES.items()}
