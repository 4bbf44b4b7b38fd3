"""An allocation that finds no memory, in the words PyTorch prints."""

from __future__ import annotations

from dataclasses import dataclass

from trainmem.units import format_bytes

__all__ = ["AllocatorOutOfMemoryError", "OutOfMemory"]


@dataclass(frozen=True, kw_only=True, slots=True)
class OutOfMemory:
    """The state of the allocator at the allocation that fails, after every idle segment was given back."""

    event_index: int
    """Position of the failing allocation in the event stream."""

    requested_bytes: int
    """What the tensor needed."""

    tried_bytes: int
    """What ``cudaMalloc`` was asked for: a whole segment. This is the figure PyTorch prints."""

    allocated_bytes: int
    reserved_bytes: int
    idle_private_bytes: int
    """Free blocks in private pools (CUDA graphs)."""

    capacity_bytes: int
    """The device's memory, as ``mem_get_info`` gives the total."""

    outside_bytes: int
    """Memory outside PyTorch: the CUDA context, libraries, other processes."""

    cap_bytes: int | None
    """What ``set_per_process_memory_fraction`` allows, when it is set."""

    device_index: int = 0

    @property
    def free_bytes(self) -> int:
        """What the device still has free."""
        return self.capacity_bytes - self.outside_bytes - self.reserved_bytes

    @property
    def mechanism(self) -> str:
        """Why it fails: the cap, fragmentation, or plainly too little memory."""
        idle, room, limit = self.reserved_bytes - self.allocated_bytes, self.free_bytes, "the device"
        if self.cap_bytes is not None and self.cap_bytes - self.reserved_bytes < room:
            room, limit = self.cap_bytes - self.reserved_bytes, "the per-process cap"
        if room + idle < self.tried_bytes:
            return (
                f"{limit} leaves {format_bytes(max(room, 0))} and the cache holds {format_bytes(idle)} idle, "
                "together less than the request"
            )
        return (
            f"{format_bytes(idle)} of the cache are idle, but in segments that are partly in use, so they "
            "neither hold the request nor can be given back: fragmentation"
        )

    @property
    def line(self) -> str:
        """PyTorch's own message (``CUDACachingAllocator.cpp``, torch 2.9 to 2.11).

        What it calls allocated counts the free blocks of private pools too. The process's memory in use is
        taken as reserved plus ``outside_bytes``.
        """
        allowed = f"{format_bytes(self.cap_bytes)} allowed; " if self.cap_bytes is not None else ""
        private = (
            f"with {format_bytes(self.idle_private_bytes)} allocated in private pools (e.g., CUDA Graphs), "
            if self.idle_private_bytes
            else ""
        )
        allocated = self.allocated_bytes + self.idle_private_bytes
        return (
            f"CUDA out of memory. Tried to allocate {format_bytes(self.tried_bytes)}. "
            f"GPU {self.device_index} has a total capacity of {format_bytes(self.capacity_bytes)} "
            f"of which {format_bytes(self.free_bytes)} is free. "
            f"Including non-PyTorch memory, this process has "
            f"{format_bytes(self.reserved_bytes + self.outside_bytes)} memory in use. {allowed}"
            f"Of the allocated memory {format_bytes(allocated)} is allocated by PyTorch, {private}"
            f"and {format_bytes(self.reserved_bytes - allocated)} is reserved by PyTorch but unallocated. "
            "If reserved but unallocated memory is large try setting "
            "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  "
            "See documentation for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
        )


class AllocatorOutOfMemoryError(MemoryError):
    """Raised by step-by-step use; ``detail`` says what failed."""

    def __init__(self, detail: OutOfMemory) -> None:
        super().__init__(detail.line)
        self.detail = detail
