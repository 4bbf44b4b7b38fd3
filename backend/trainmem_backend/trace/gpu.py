"""What decides which kernels a GPU runs and how much scratch memory they take."""

from __future__ import annotations

from dataclasses import dataclass

from trainmem.device import device as device_named
from trainmem.tape.hardware import hardware

__all__ = ["GpuTraits", "gpu_traits"]


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuTraits:
    """A GPU as its kernels see it.

    ``attention_order`` is the order in which PyTorch tries the fused attention kernels: cuDNN before flash on
    Hopper and data-centre Blackwell (`check_prefer_cudnn_attention` in ATen's sdp_utils.cpp), never elsewhere.
    Workspaces are made once per (handle, stream) (ATen's CublasHandlePool.cpp).
    """

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    threads_per_multiprocessor: int
    attention_order: tuple[str, ...]
    cublas_workspace_bytes: int
    cublaslt_workspace_bytes: int
    total_bytes: int
    is_integrated: bool


def gpu_traits(name: str) -> GpuTraits:
    """The traits of a device by catalogue name."""
    chip, spec = hardware(name), device_named(name)
    order = ("flash", "efficient", "math")
    return GpuTraits(
        name=spec.title.partition(" (")[0],
        capability=chip.capability,
        multiprocessors=chip.sm_count,
        threads_per_multiprocessor=chip.threads_per_sm,
        attention_order=("cudnn", *order) if chip.attention == "cudnn" else order,
        cublas_workspace_bytes=chip.cublas_workspace_bytes,
        cublaslt_workspace_bytes=chip.cublaslt_workspace_bytes,
        total_bytes=spec.visible_bytes,
        is_integrated=spec.integrated,
    )
