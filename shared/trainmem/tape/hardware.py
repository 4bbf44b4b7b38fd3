"""What of a device decides a step's bytes: its multiprocessors, its attention kernel, its cuBLAS workspace."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from trainmem.device import device
from trainmem.tape.attention import Kernel

__all__ = ["Hardware", "hardware"]


@dataclass(frozen=True, slots=True)
class Hardware:
    """``sm_count`` and ``threads_per_sm`` size split reductions; ``attention`` is SDPA's choice for 16-bit.

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
