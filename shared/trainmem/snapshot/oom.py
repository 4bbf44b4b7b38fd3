"""An out-of-memory event: what was asked, what was free, and what would have fitted."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from trainmem.allocator import AllocatorSettings
from trainmem.snapshot.model import Snapshot, Trace
from trainmem.snapshot.replay import Replay
from trainmem.snapshot.timeline import Curves

__all__ = ["OutOfMemory", "explain_failures"]


@dataclass(frozen=True, kw_only=True, slots=True)
class OutOfMemory:
    """One failed request."""

    event: int
    requested_bytes: int
    tried_bytes: int
    """Size of the new segment that the device was asked for."""

    allocated_bytes: int
    reserved_bytes: int
    device_free_bytes: int
    """Free on the device at that moment, as the driver says."""

    largest_free_block_bytes: int | None
    """Largest free block that the request could have used; ``None`` when the segments are not known."""

    private_pool_free_bytes: int
    """Free, but kept for CUDA graphs or another private pool."""

    stack: int

    @property
    def unused_bytes(self) -> int:
        """Reserved but not allocated."""
        return max(self.reserved_bytes - self.allocated_bytes, 0)

    @property
    def is_capped(self) -> bool:
        """Whether the device had room and a limit of the process refused it."""
        return self.device_free_bytes >= self.tried_bytes

    @property
    def would_have_fitted_bytes(self) -> int:
        """The largest request that needed nothing else: into a free block, or into the device's free memory."""
        from_device = 0 if self.is_capped else self.device_free_bytes
        return max(self.largest_free_block_bytes or 0, from_device)


def explain_failures(
    snapshot: Snapshot, trace: Trace, replay: Replay, curves: Curves, settings: AllocatorSettings
) -> list[OutOfMemory]:
    """Every out-of-memory event of a device, in order."""
    pools = _PrivatePools(snapshot, trace.device)
    failures: list[OutOfMemory] = []
    for event, ranges in zip(replay.out_of_memory, replay.free_at_failure, strict=True):
        requested = trace.size[event]
        usable = [size for address, size in ranges if not pools.has(address)]
        failures.append(
            OutOfMemory(
                event=event,
                requested_bytes=requested,
                tried_bytes=settings.segment_bytes(settings.rounded(requested)),
                allocated_bytes=curves.allocated[event],
                reserved_bytes=curves.reserved[event],
                device_free_bytes=trace.device_free_bytes.get(event, 0),
                largest_free_block_bytes=max(usable, default=0) if ranges or replay.segment_events else None,
                private_pool_free_bytes=sum(size for address, size in ranges if pools.has(address)),
                stack=trace.stack[event],
            )
        )
    return failures


class _PrivatePools:
    """Addresses of the segments that belong to a private pool, as the end of the recording shows them."""

    def __init__(self, snapshot: Snapshot, device: int) -> None:
        segments = snapshot.segments
        self._ranges = sorted(
            (address, address + size)
            for of, address, size, pool in zip(
                segments.device, segments.address, segments.size, segments.pool, strict=True
            )
            if of == device and snapshot.strings[pool] not in ("", "0.0")
        )
        self._starts = [start for start, _ in self._ranges]

    def has(self, address: int) -> bool:
        at = bisect_right(self._starts, address) - 1
        return at >= 0 and address < self._ranges[at][1]
