"""What the driver's management library says; a figure that it does not support is null with the reason.

On an integrated GPU (DGX Spark) memory queries raise NotSupported: that is not zero bytes.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Holder", "Nvml", "Reading"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """A value, or why there is none."""

    value: Any = None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """A process that holds memory of the GPU; ``used_bytes`` is None where the driver does not say."""

    pid: int
    used_bytes: int | None


def visible_index(environment: Mapping[str, str]) -> int:
    """NVML's number of the first device that CUDA shows: NVML counts those that are hidden too."""
    first = environment.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0].strip()
    return int(first) if first.isdigit() else 0


class Nvml:
    """NVML for one device, opened lazily. Every question answers a `Reading`; none raises."""

    def __init__(self, library: Any = None, index: int | None = None) -> None:
        self._library = library
        self._index = visible_index(os.environ) if index is None else index
        self._handle: Any = None
        self._broken: str | None = None

    def _ask(self, question: Callable[[Any, Any], Any]) -> Reading:
        if self._broken is None and self._handle is None:
            try:
                if self._library is None:
                    self._library = importlib.import_module("pynvml")
                self._library.nvmlInit()
                self._handle = self._library.nvmlDeviceGetHandleByIndex(self._index)
            except Exception as error:
                self._broken = f"NVML: {_said(error)}"
        if self._broken is not None:
            return Reading(reason=self._broken)
        try:
            return Reading(value=question(self._library, self._handle))
        except Exception as error:
            return Reading(reason=f"NVML: {_said(error)}")

    def driver(self) -> Reading:
        """The driver's version."""
        return self._ask(lambda nvml, _: _text(nvml.nvmlSystemGetDriverVersion()))

    def memory_used_bytes(self) -> Reading:
        """Memory in use on the whole device."""
        return self._ask(lambda nvml, handle: int(nvml.nvmlDeviceGetMemoryInfo(handle).used))

    def sm_clock_mhz(self) -> Reading:
        """The clock of the multiprocessors."""
        return self._ask(lambda nvml, handle: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)))

    def power_watts(self) -> Reading:
        """The power drawn."""
        return self._ask(lambda nvml, handle: nvml.nvmlDeviceGetPowerUsage(handle) / 1000)

    def temperature_celsius(self) -> Reading:
        """The temperature of the chip."""
        return self._ask(
            lambda nvml, handle: int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
        )

    def holders(self) -> Reading:
        """The processes that compute on the device, as a list of `Holder`."""
        return self._ask(
            lambda nvml, handle: [
                Holder(pid=int(p.pid), used_bytes=int(p.usedGpuMemory) if p.usedGpuMemory else None)
                for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            ]
        )

    def state(self) -> dict[str, Any]:
        """Clock, power, temperature and memory for a row, with the reasons for what is null."""
        readings = {
            "sm_clock_mhz": self.sm_clock_mhz(),
            "power_watts": self.power_watts(),
            "temperature_celsius": self.temperature_celsius(),
            "memory_used_bytes": self.memory_used_bytes(),
        }
        found: dict[str, Any] = {name: reading.value for name, reading in readings.items()}
        found["null_because"] = {name: r.reason for name, r in readings.items() if r.reason is not None}
        return found


def _said(error: Exception) -> str:
    return f"{type(error).__name__.removeprefix('NVMLError_')}: {error}"[:200]


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
