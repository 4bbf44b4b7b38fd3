"""What a row says about where it was measured."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

import torch

from trainmem_backend.measure.guard.cap import DeviceFacts
from trainmem_backend.measure.hostmemory import read_host_memory
from trainmem_backend.measure.nvml import Nvml

__all__ = ["describe", "versions"]

_PACKAGES = ("transformers", "peft", "bitsandbytes", "liger_kernel", "triton")


def versions() -> dict[str, str | None]:
    """Versions of what decides which kernels run; null where it is not installed."""
    found: dict[str, str | None] = {"torch": torch.__version__}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def describe(facts: DeviceFacts, nvml: Nvml, *, pretended: bool = False) -> dict[str, Any]:
    """The environment, as far as the worker knows it; the parent adds the command, the commit and the cap."""
    driver = nvml.driver()
    found: dict[str, Any] = {
        "gpu": None if pretended else facts.name,
        "gpu_memory_bytes": facts.total_bytes,
        "gpu_free_bytes": facts.free_bytes,
        "integrated": facts.integrated,
        "driver": driver.value,
        "cuda": torch.version.cuda,
        **versions(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "date": datetime.now(UTC).date().isoformat(),
        "allocator_settings": os.environ.get("PYTORCH_ALLOC_CONF")
        or os.environ.get("PYTORCH_CUDA_ALLOC_CONF")
        or "",
        "host_memory": read_host_memory().to_json(),
        "gpu_state": nvml.state(),
    }
    if driver.reason is not None:
        found["driver_null_because"] = driver.reason
    if not pretended:
        major, minor = torch.cuda.get_device_capability()
        found["compute_capability"] = f"{major}.{minor}"
        found["cublas_workspace_setting"] = os.environ.get("CUBLAS_WORKSPACE_CONFIG", "")
        for name in ("cublas_workspace_size", "cublaslt_workspace_size"):
            ask = getattr(torch.backends.cuda, name, None)
            found[f"{name}_bytes"] = int(ask()) if callable(ask) else None
    return found
