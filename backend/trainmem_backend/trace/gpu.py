"""What decides which kernels a GPU runs and how much scratch memory they take."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GpuTraits", "gpu_traits"]


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuTraits:
    """A GPU as its kernels see it.

    ``attention_order`` is the order in which PyTorch tries the fused attention kernels
    (`at::Context::sDPPriorityOrder`: cuDNN first on Hopper and data-centre Blackwell). The cuBLAS workspace
    is allocated once per (handle, stream): 32 MiB on compute capability 9.0 and newer, else 8,519,680 bytes
    (aten/src/ATen/cuda/CublasHandlePool.cpp); cuBLASLt takes 1 MiB of its own per (handle, stream).
    """

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    threads_per_multiprocessor: int = 2048
    attention_order: tuple[str, ...] = ("cudnn", "flash", "efficient", "math")
    cublas_workspace_bytes: int = 32 << 20
    cublaslt_workspace_bytes: int = 1 << 20
    total_bytes: int = 0


_FLASH_FIRST = ("flash", "efficient", "math", "cudnn")

_GPUS: dict[str, GpuTraits] = {
    "h200": GpuTraits(
        name="NVIDIA H200", capability=(9, 0), multiprocessors=132, total_bytes=150_109_880_320
    ),
    "h100": GpuTraits(name="NVIDIA H100", capability=(9, 0), multiprocessors=132, total_bytes=85_028_765_696),
    "spark": GpuTraits(
        name="NVIDIA GB10",
        capability=(12, 1),
        multiprocessors=48,
        threads_per_multiprocessor=1536,
        attention_order=_FLASH_FIRST,
        total_bytes=128_501_256_192,
    ),
    "a100": GpuTraits(
        name="NVIDIA A100",
        capability=(8, 0),
        multiprocessors=108,
        attention_order=_FLASH_FIRST,
        cublas_workspace_bytes=8_519_680,
        total_bytes=85_095_874_560,
    ),
}


def gpu_traits(device: str) -> GpuTraits:
    """The traits of a device by catalogue name; unknown ones are taken to be like an H200."""
    return _GPUS.get(device, _GPUS["h200"])
