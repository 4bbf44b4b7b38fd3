"""What the kernel says about memory, which on an integrated GPU is the device's memory too."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainmem.units import KIB, format_gib

__all__ = ["HostMemory", "low_free_warning", "read_host_memory", "told"]

_HUGE_PAGE_ORDER = 9
_LITTLE_FREE = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class HostMemory:
    """``/proc/meminfo`` in bytes; None where a field is not there.

    ``available_bytes`` is what programs can still get: the kernel gives the page cache back.
    ``free_bytes`` is what ``cudaMemGetInfo`` calls free on an integrated GPU, where cached files count
    as used. ``huge_blocks`` counts free blocks of 2 MiB and more, from ``/proc/buddyinfo``: large CUDA
    allocations need them.
    """

    total_bytes: int | None = None
    available_bytes: int | None = None
    free_bytes: int | None = None
    cached_bytes: int | None = None
    swap_free_bytes: int | None = None
    huge_blocks: int | None = None

    def to_json(self) -> dict[str, Any]:
        """For a row's environment."""
        return asdict(self)


def read_host_memory(proc: Path = Path("/proc")) -> HostMemory:
    """The memory now. Never raises: what cannot be read is None."""
    fields: dict[str, int] = {}
    try:
        for line in (proc / "meminfo").read_text(encoding="ascii").splitlines():
            name, _, rest = line.partition(":")
            number = rest.split()
            if number and number[0].isdigit():
                fields[name] = int(number[0]) * KIB
    except OSError:
        pass
    return HostMemory(
        total_bytes=fields.get("MemTotal"),
        available_bytes=fields.get("MemAvailable"),
        free_bytes=fields.get("MemFree"),
        cached_bytes=fields.get("Cached"),
        swap_free_bytes=fields.get("SwapFree"),
        huge_blocks=_huge_blocks(proc),
    )


def _huge_blocks(proc: Path) -> int | None:
    try:
        lines = (proc / "buddyinfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    total = 0
    for line in lines:
        # "Node 0, zone   Normal   counts of free blocks by order": an order-n block is 4 KiB x 2^n.
        counts = [int(part) for part in line.split()[4:] if part.isdigit()]
        total += sum(
            count << (order - _HUGE_PAGE_ORDER)
            for order, count in enumerate(counts)
            if order >= _HUGE_PAGE_ORDER
        )
    return total


def told(memory: HostMemory) -> str:
    """The memory in one line, for a machine whose GPU shares it; what is not known is left out."""
    parts = (
        ("total", memory.total_bytes),
        ("available", memory.available_bytes),
        ("free", memory.free_bytes),
        ("cached files", memory.cached_bytes),
        ("free swap", memory.swap_free_bytes),
    )
    known = ", ".join(f"{name} {format_gib(size)}" for name, size in parts if size is not None)
    return f"one pool for CPU and GPU: {known}; sized by what is available"


def low_free_warning(memory: HostMemory) -> str | None:
    """A sentence for an integrated GPU whose free memory is mostly page cache; None where there is enough."""
    free, available = memory.free_bytes, memory.available_bytes
    if free is None or available is None or free >= _LITTLE_FREE * available:
        return None
    return (
        f"MemFree {format_gib(free)} of {format_gib(available)} available: CUDA counts cached files as used. "
        "To hand them back: sync; echo 3 | sudo tee /proc/sys/vm/drop_caches; "
        "echo 1 | sudo tee /proc/sys/vm/compact_memory"
    )
