"""A bf16 matrix product beside a timed run: whether the machine was awake while it ran."""

from __future__ import annotations

import time

import torch

from trainmem_backend.measure.device import Device

__all__ = ["matmul_tflops"]


def matmul_tflops(device: Device, *, size: int = 8192, repeats: int = 20) -> float | None:
    """TFLOP/s of ``size`` cubed in bf16 on random numbers, or None where there was no memory left for it.

    Equation: 2 size^3 x repeats / seconds. A size of 8,192 takes 400 MB and is limited by arithmetic on every
    GPU here; on the CPU, where only the code is exercised, a small one is used.
    """
    if device.kind != "cuda":
        size, repeats = 64, 2
    try:
        left = torch.randn(size, size, dtype=torch.bfloat16, device=device.kind)
        right = torch.randn(size, size, dtype=torch.bfloat16, device=device.kind)
        out = torch.empty_like(left)
        for _ in range(3):
            torch.matmul(left, right, out=out)
        device.synchronize()
        began = time.perf_counter()
        for _ in range(repeats):
            torch.matmul(left, right, out=out)
        device.synchronize()
        return round(2 * size**3 * repeats / (time.perf_counter() - began) / 1e12, 2)
    except torch.OutOfMemoryError:
        return None
