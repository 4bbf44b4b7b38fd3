"""`torch.autocast` for "cuda", run as the CPU's: that is where PyTorch's C++ side sees the tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch

from trainmem_backend.trace.autocast import forget_casts
from trainmem_backend.trace.recorder import Recorder

__all__ = ["autocast_aimed_at_cpu"]


class _AutocastOnCpu(torch.amp.autocast_mode.autocast):
    """`torch.autocast` whose "cuda" means the virtual device."""

    def __init__(
        self,
        device_type: str = "cuda",
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        if device_type == "cuda":
            dtype = torch.get_autocast_dtype("cuda") if dtype is None else dtype
            device_type = "cpu"
        super().__init__(device_type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


class _CudaAutocast(_AutocastOnCpu):
    def __init__(
        self, enabled: bool = True, dtype: torch.dtype = torch.float16, cache_enabled: bool = True
    ) -> None:
        super().__init__("cuda", enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)


def _aimed_at_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    def redirected(device_type: Any = "cpu", *rest: Any) -> Any:
        return function("cpu" if device_type == "cuda" else device_type, *rest)

    return redirected


def _dtype_of(real_dtype: Callable[[str], torch.dtype]) -> Callable[[str], torch.dtype]:
    """CUDA's dtype is float16 until a program chooses another, the CPU's bfloat16."""

    def dtype(device_type: str) -> torch.dtype:
        if device_type != "cuda":
            return real_dtype(device_type)
        return real_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float16

    return dtype


@contextlib.contextmanager
def autocast_aimed_at_cpu(recorder: Recorder) -> Iterator[None]:
    """Programs that ask for CUDA's autocast, its state or its dtype get the CPU's inside."""
    clear = torch.clear_autocast_cache

    def clear_in_order() -> None:
        """The cache is a hash table of addresses: on a GPU, too, the order of its end differs every time."""
        with recorder.freeing_in_order():
            clear()
            forget_casts()

    instead: dict[str, Any] = {
        "clear_autocast_cache": clear_in_order,
        "get_autocast_dtype": _dtype_of(torch.get_autocast_dtype),
    }
    for name in ("is_autocast_enabled", "set_autocast_enabled", "set_autocast_dtype"):
        instead[name] = _aimed_at_cpu(getattr(torch, name))
    with contextlib.ExitStack() as stack:
        for owner in (torch, torch.amp, torch.amp.autocast_mode):
            if hasattr(owner, "autocast"):
                stack.enter_context(mock.patch.object(owner, "autocast", _AutocastOnCpu))
        stack.enter_context(mock.patch.object(torch.cuda.amp, "autocast", _CudaAutocast))
        for name, value in instead.items():
            stack.enter_context(mock.patch.object(torch, name, value))
        yield
