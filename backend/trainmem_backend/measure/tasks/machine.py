"""What a machine has and does before any model: memory, context, workspaces, bandwidth, arithmetic."""

from __future__ import annotations

import time
from typing import Any

import torch

from trainmem_backend.measure.device import Device
from trainmem_backend.measure.guard.cap import DeviceFacts
from trainmem_backend.measure.hostmemory import low_free_warning, read_host_memory
from trainmem_backend.measure.nvml import Nvml
from trainmem_backend.measure.tasks.canary import matmul_tflops

__all__ = ["measure_machine"]

_COPIED_BYTES = 1 << 30
_COPIES = 10


def measure_machine(device: Device, facts: DeviceFacts, nvml: Nvml, before: dict[str, Any]) -> dict[str, Any]:
    """The figures of a machine trial; ``before`` is what was read before the context existed."""
    host = read_host_memory()
    measured: dict[str, Any] = {
        "total_bytes": facts.total_bytes,
        "free_bytes": facts.free_bytes,
        "host_memory": host.to_json(),
        "host_memory_warning": low_free_warning(host) if facts.integrated else None,
        "context": _context(nvml, before, facts),
        "workspace": _workspaces(device) if device.kind == "cuda" else None,
        "bf16_matmul_tflops": matmul_tflops(device),
        "copy_bytes_per_second": _copy_rate(device),
        "gpu_state_after_load": nvml.state(),
    }
    return measured


def _context(nvml: Nvml, before: dict[str, Any], facts: DeviceFacts) -> dict[str, Any]:
    """Bytes the CUDA context takes, by the driver's figures and, where memory is shared, by the kernel's."""
    found: dict[str, Any] = {"bytes": None}
    after = nvml.memory_used_bytes()
    if after.value is not None and before.get("memory_used_bytes") is not None:
        found = {
            "bytes": after.value - before["memory_used_bytes"],
            "source": "NVML, whole device, difference",
        }
    elif facts.integrated and before.get("available_bytes") is not None:
        available = read_host_memory().available_bytes
        if available is not None:
            found = {"bytes": before["available_bytes"] - available, "source": "MemAvailable, difference"}
    if found["bytes"] is None:
        found["null_because"] = after.reason or "no figure from before the context"
    return found


def _workspaces(device: Device) -> dict[str, Any]:
    """What cuBLAS holds in the caching allocator after one product, for the forward and the backward
    thread."""
    before = device.allocated_bytes()
    left = torch.randn(256, 256, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    right = torch.randn(256, 256, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    made = device.allocated_bytes()
    out = left @ right
    device.synchronize()
    forward = device.allocated_bytes() - made - out.nbytes
    total = out.sum()
    torch.autograd.backward(total)
    device.synchronize()
    held = sum(t.nbytes for t in (left, right, left.grad, right.grad, out) if t is not None) + 512
    return {
        "forward_thread_bytes": forward,
        "both_threads_bytes": device.allocated_bytes() - before - held,
    }


def _copy_rate(device: Device) -> float | None:
    """Bytes read and written per second by a copy within the device."""
    size = _COPIED_BYTES if device.kind == "cuda" else 1 << 16
    try:
        source = torch.empty(size, dtype=torch.uint8, device=device.kind).random_()
        target = torch.empty_like(source)
        target.copy_(source)
        device.synchronize()
        began = time.perf_counter()
        for _ in range(_COPIES):
            target.copy_(source)
        device.synchronize()
        return round(2 * size * _COPIES / (time.perf_counter() - began))
    except torch.OutOfMemoryError:
        return None
