"""What trainmem knows about one device."""

from __future__ import annotations

from dataclasses import dataclass

from trainmem.units import MIB

__all__ = ["ASSUMED_CONTEXT_BYTES", "Device"]

ASSUMED_CONTEXT_BYTES = 619 * MIB
"""The CUDA context where none was measured: that of an H200 (driver 580, CUDA 13) before any model.

Leaves out what grows with the kernels loaded and with NCCL; other devices may differ by hundreds of MiB.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """One device a job may run on; every figure is for one of it.

    ``marketed_bytes`` is the number on the box, taken as GB of 10^9 bytes. Memory chips come in powers of
    two, so what torch shows can be more.
    ``visible_bytes`` is the least that torch was seen to show as the total, ``visible_high_bytes`` the most:
    drivers, firmware and ECC move it.
    ``os_share_bytes`` is what the system keeps of a pool that CPU and GPU share (``integrated``).
    ``context_bytes`` is the CUDA context outside the caching allocator, None where it was not measured.
    ``bandwidth_bytes_per_second`` and ``bf16_flops_per_second`` (dense, fp32 accumulation, None without bf16
    matrix units) are the vendor's peaks.
    ``cublas_workspace_bytes`` is the default workspace of one cuBLAS handle and stream in torch 2.11 to 2.13.
    ``cuda`` is False for devices listed only to say that CUDA jobs do not run there.
    """

    name: str
    title: str
    marketed_bytes: int
    visible_bytes: int
    visible_high_bytes: int
    bandwidth_bytes_per_second: int
    bf16_flops_per_second: int | None
    compute_capability: tuple[int, int] | None
    cublas_workspace_bytes: int
    sources: tuple[str, ...]
    os_share_bytes: int = 0
    context_bytes: int | None = None
    cuda: bool = True
    integrated: bool = False
    aliases: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def usable_bytes(self) -> int:
        """What the job's processes may take: the least visible total without the system's share."""
        return self.visible_bytes - self.os_share_bytes

    @property
    def allocator_limit_bytes(self) -> int:
        """What the caching allocator may reserve: the usable bytes without the CUDA context.

        Where the context was not measured it is taken as `ASSUMED_CONTEXT_BYTES`.
        """
        if not self.cuda:
            return 0
        context = ASSUMED_CONTEXT_BYTES if self.context_bytes is None else self.context_bytes
        return self.usable_bytes - context
