"""How much the allocator may reserve, and which jobs are refused because they would need more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainmem.units import GIB, MIB, format_gib

__all__ = ["DEFAULT_FLOOR_BYTES", "Cap", "DeviceFacts", "cap_of", "refusal"]

DEFAULT_FLOOR_BYTES = 16 * GIB
"""Host memory left alone on an integrated GPU. One was seen to lose 21 GiB in 1.5 s before it hung."""

_LIBRARIES_BYTES = 512 * MIB
"""Left to what allocates outside PyTorch after the start on a discrete GPU: cuDNN plans, kernels loaded
lazily."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceFacts:
    """A device as its first context sees it; ``free_bytes`` is `mem_get_info`'s, read after the context
    exists."""

    name: str
    total_bytes: int
    free_bytes: int
    integrated: bool

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DeviceFacts:
        """From a worker's message."""
        return cls(**{name: data[name] for name in ("name", "total_bytes", "free_bytes", "integrated")})


@dataclass(frozen=True, kw_only=True, slots=True)
class Cap:
    """What the allocator may reserve, and why that much."""

    cap_bytes: int
    reason: str

    def fraction(self, total_bytes: int) -> float:
        """For ``set_per_process_memory_fraction``, which counts in shares of the device's total."""
        return min(1.0, self.cap_bytes / total_bytes)


def cap_of(
    facts: DeviceFacts,
    *,
    available_bytes: int | None,
    floor_bytes: int = DEFAULT_FLOOR_BYTES,
    capacity_bytes: int | None = None,
) -> Cap:
    """The cap for one process.

    On an integrated GPU the kernel's MemAvailable less the floor: what CUDA calls free there leaves out
    the page cache, which the kernel would hand back. On a discrete GPU what is free less room for
    libraries. ``capacity_bytes`` lowers either, to stand in for a smaller machine.
    """
    if facts.integrated and available_bytes is not None:
        cap = available_bytes - floor_bytes
        reason = f"MemAvailable {format_gib(available_bytes)} less a floor of {format_gib(floor_bytes)}"
    else:
        cap = facts.free_bytes - _LIBRARIES_BYTES
        reason = f"{format_gib(facts.free_bytes)} free less {format_gib(_LIBRARIES_BYTES)} for libraries"
    if capacity_bytes is not None and capacity_bytes < cap:
        cap = capacity_bytes
        reason = f"held to {format_gib(capacity_bytes)} as asked"
    return Cap(cap_bytes=max(cap, 0), reason=reason)


def refusal(predicted_bytes: int | None, cap: Cap, *, forced: bool = False) -> str | None:
    """Why a job must not start under ``cap``; None where it may."""
    if forced or predicted_bytes is None or predicted_bytes <= cap.cap_bytes:
        return None
    return (
        f"predicted peak {format_gib(predicted_bytes)} is over the cap of {format_gib(cap.cap_bytes)} "
        f"({cap.reason}); --force runs it all the same"
    )
