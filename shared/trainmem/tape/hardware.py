"""What of a device decides a step's bytes: its multiprocessors, its attention kernels, its cuBLAS workspace."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from trainmem.device import device
from trainmem.tape.attention import Kernel

__all__ = ["Hardware", "hardware", "sdpa_kernel"]


@dataclass(frozen=True, slots=True)
class Hardware:
    """``sm_count`` and ``threads_per_sm`` size split reductions; ``attention`` is SDPA's first choice for 16-bit.

    ``grouped_mm``: the device runs grouped bf16 products in one CUTLASS kernel (ATen/native/cuda/GroupedBlas.cpp:
    compute capability 9.0 and 10.0 alone), and not one by one.
    """

    sm_count: int
    threads_per_sm: int
    attention: Kernel
    cublas_workspace_bytes: int
    grouped_mm: bool
    capability: tuple[int, int]
    cublaslt_workspace_bytes: int = 1 << 20


_SM_COUNT = {
    "spark": 48,
    "jetson-thor": 20,
    "h100-80gb": 132,
    "h100-pcie-80gb": 114,
    "h200": 132,
    "b200": 148,
    "a100-40gb": 108,
    "a100-80gb": 108,
    "l40s": 142,
    "l4": 58,
    "t4": 40,
    "rtx-3090": 82,
    "rtx-4090": 128,
    "rtx-5090": 170,
    "rtx-pro-6000": 188,
}
"""Streaming multiprocessors, from the vendor's data sheets (132 read from a live H200)."""

_THREADS_PER_SM = {(7, 5): 1024, (8, 0): 2048, (9, 0): 2048, (10, 0): 2048}
"""Resident threads a multiprocessor by compute capability (CUDA C++ programming guide); 1,536 elsewhere."""


@lru_cache(maxsize=64)
def hardware(name: str) -> Hardware:
    """The hardware of a device by name.

    SDPA prefers cuDNN on compute capability 9.0 and 10.0 and flash elsewhere from 8.0 up (ATen
    sdp_utils.cpp; cuDNN on an H200 measured); below that only the memory-efficient kernel runs.
    """
    spec = device(name)
    capability = spec.compute_capability or (9, 0)
    attention: Kernel = "flash"
    if capability in ((9, 0), (10, 0)):
        attention = "cudnn"
    elif capability < (8, 0):
        attention = "efficient"
    return Hardware(
        sm_count=_SM_COUNT.get(spec.name, 132),
        threads_per_sm=_THREADS_PER_SM.get(capability, 1536),
        attention=attention,
        cublas_workspace_bytes=spec.cublas_workspace_bytes,
        grouped_mm=capability in ((9, 0), (10, 0)),
        capability=capability,
    )


def sdpa_kernel(
    chip: Hardware, itemsize: int, head_dim: int, *, bf16: bool, grouped: bool, masked: bool, drops: bool
) -> Kernel:
    """The kernel that scaled_dot_product_attention runs while training.

    The first of cuDNN, flash, memory-efficient and math whose conditions in ATen's sdp_utils.cpp hold; on an
    H200 with torch 2.11 measured by dtype, heads and mask. ``grouped``: fewer key/value heads than query heads
    are left to the kernel.
    """
    if itemsize == 2:
        if chip.attention == "cudnn" and head_dim % 8 == 0 and head_dim <= 256:
            return "cudnn"
        if chip.capability >= (8, 0) and not masked and _flash_trains(chip, head_dim, drops):
            return "flash"
    aligned = head_dim % (8 if itemsize == 2 else 4) == 0
    known = not bf16 or chip.capability >= (8, 0)
    return "efficient" if known and aligned and not grouped else "math"


def _flash_trains(chip: Hardware, head_dim: int, drops: bool) -> bool:
    """Small shared memory does not take heads of 193 to 224 elements, nor wider ones with dropout."""
    if chip.capability in ((8, 6), (8, 9)) or chip.capability[0] == 12:
        return head_dim <= 192 or (224 < head_dim <= 256 and not drops)
    return head_dim <= 256
