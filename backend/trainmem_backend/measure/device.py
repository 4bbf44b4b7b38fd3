"""The device of a worker: its counters, and a pretended one so that the harness runs without a GPU."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from trainmem_backend.measure.guard.cap import Cap, DeviceFacts

__all__ = ["CudaDevice", "Device", "NoCudaError", "PretendedDevice"]


class NoCudaError(RuntimeError):
    """This machine, or this build of torch, has no CUDA device; the message says which."""


class Device(Protocol):
    """What a task needs of a device: the caching allocator's counters, in bytes."""

    kind: str

    def open(self) -> DeviceFacts:
        """Create the context, and say what the device is."""

    def hold_to(self, cap: Cap) -> None:
        """Let the allocator reserve no more than the cap."""

    def watch(self, workload: Any) -> None:
        """Say whose tensors live on the device."""

    def allocated_bytes(self) -> int:
        """``memory_allocated``."""

    def peak_allocated_bytes(self) -> int:
        """``max_memory_allocated`` since `reset_peak`."""

    def peak_reserved_bytes(self) -> int:
        """``max_memory_reserved`` since `reset_peak`."""

    def peak_requested_bytes(self) -> int:
        """What tensors asked for at their peak, before any rounding."""

    def retries(self) -> int:
        """How often the allocator gave every idle segment back because the device was full."""

    def reset_peak(self) -> None:
        """Begin a new peak at what is allocated now."""

    def synchronize(self) -> None:
        """Wait until the device is idle."""


class CudaDevice:
    """The current CUDA device."""

    kind = "cuda"

    def open(self) -> DeviceFacts:
        """Create the context and the allocator, and leave no segment behind. Raises `NoCudaError`."""
        if not torch.backends.cuda.is_built():
            raise NoCudaError(f"torch {torch.__version__} is a build without CUDA")
        if not torch.cuda.is_available():
            raise NoCudaError(f"torch {torch.__version__} finds no CUDA device")
        torch.zeros(1, device="cuda")
        torch.cuda.empty_cache()
        properties = torch.cuda.get_device_properties()
        free, _ = torch.cuda.mem_get_info()
        return DeviceFacts(
            name=properties.name,
            total_bytes=properties.total_memory,
            free_bytes=free,
            integrated=bool(getattr(properties, "is_integrated", False)),
        )

    def hold_to(self, cap: Cap) -> None:
        """Refuse in the allocator, before the driver is asked: on an integrated GPU asking can hang the
        host."""
        total = torch.cuda.get_device_properties().total_memory
        torch.cuda.set_per_process_memory_fraction(cap.fraction(total))

    def watch(self, workload: Any) -> None:
        """The allocator knows by itself."""

    def allocated_bytes(self) -> int:
        """``memory_allocated``."""
        return torch.cuda.memory_allocated()

    def peak_allocated_bytes(self) -> int:
        """``max_memory_allocated``."""
        return torch.cuda.max_memory_allocated()

    def peak_reserved_bytes(self) -> int:
        """``max_memory_reserved``."""
        return torch.cuda.max_memory_reserved()

    def peak_requested_bytes(self) -> int:
        """``requested_bytes.all.peak``."""
        return int(torch.cuda.memory_stats().get("requested_bytes.all.peak", 0))

    def retries(self) -> int:
        """``num_alloc_retries``."""
        return int(torch.cuda.memory_stats().get("num_alloc_retries", 0))

    def reset_peak(self) -> None:
        """``reset_peak_memory_stats``."""
        torch.cuda.reset_peak_memory_stats()

    def synchronize(self) -> None:
        """``synchronize``."""
        torch.cuda.synchronize()


class PretendedDevice:
    """A device on the CPU whose counters are made up, to exercise the harness; its rows are never published.

    Allocated is what the watched model, its gradients and its optimizer hold; a peak is that and
    ``BYTES_PER_TOKEN`` for each token of the batch. A peak over the cap raises what a GPU would.
    """

    kind = "cpu"
    BYTES_PER_TOKEN = 4096

    def __init__(self, total_bytes: int = 8 << 30) -> None:
        self._total = total_bytes
        self._cap = total_bytes
        self._workload: Any = None

    def open(self) -> DeviceFacts:
        """A device of the given size, all of it free."""
        return DeviceFacts(
            name="pretended", total_bytes=self._total, free_bytes=self._total, integrated=False
        )

    def hold_to(self, cap: Cap) -> None:
        """Remember the cap."""
        self._cap = cap.cap_bytes

    def watch(self, workload: Any) -> None:
        """Count this workload's tensors from now on."""
        self._workload = workload

    def allocated_bytes(self) -> int:
        """Bytes of parameters, gradients and optimizer state."""
        if self._workload is None:
            return 0
        total = 0
        for parameter in self._workload.model.parameters():
            total += parameter.nbytes + (parameter.grad.nbytes if parameter.grad is not None else 0)
        states = getattr(self._workload.optimizer, "state", {})
        return total + sum(
            value.nbytes for state in states.values() for value in state.values() if torch.is_tensor(value)
        )

    def peak_allocated_bytes(self) -> int:
        """Allocated and a made-up figure for the batch."""
        tokens = self._workload.batch["input_ids"].numel() if self._workload is not None else 0
        peak = self.allocated_bytes() + self.BYTES_PER_TOKEN * tokens
        if peak > self._cap:
            raise torch.OutOfMemoryError(f"CUDA out of memory (pretended): {peak:,} over {self._cap:,} bytes")
        return peak

    def peak_reserved_bytes(self) -> int:
        """A little above the peak."""
        return self.peak_allocated_bytes() + (2 << 20)

    def peak_requested_bytes(self) -> int:
        """A little below the peak."""
        return self.peak_allocated_bytes() - 512

    def retries(self) -> int:
        """None."""
        return 0

    def reset_peak(self) -> None:
        """Peaks are made up on the spot."""

    def synchronize(self) -> None:
        """The CPU is always in step."""
