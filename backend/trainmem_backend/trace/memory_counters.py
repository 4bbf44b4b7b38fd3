"""`torch.cuda`'s memory counters, answered from the replay of what has been recorded so far."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from trainmem.allocator import CachingAllocator
from trainmem.recording import kernel_loads
from trainmem.units import format_gib
from trainmem_backend.trace.recorder import Recorder

__all__ = ["MemoryCounters"]


class _DefaultStream(dict[int, int]):
    def __missing__(self, number: int) -> int:
        return 0


class MemoryCounters:
    """Replays a growing recording, only ever what is new."""

    def __init__(self, recorder: Recorder, total_bytes: int) -> None:
        self._recorder, self._total_bytes = recorder, total_bytes
        self._allocator = CachingAllocator()
        self._played = self._emptied = 0
        self._loaded: set[int] = set()
        self._most_allocated = self._most_reserved = 0

    def functions(self) -> dict[str, Callable[..., Any]]:
        """What to put in place of `torch.cuda`'s functions, by name."""
        return {
            "memory_allocated": lambda *_, **__: self._play().allocated_bytes,
            "memory_reserved": lambda *_, **__: self._play().reserved_bytes,
            "max_memory_allocated": lambda *_, **__: self._peaks()[0],
            "max_memory_reserved": lambda *_, **__: self._peaks()[1],
            "reset_peak_memory_stats": lambda *_, **__: self._reset(),
            "reset_max_memory_allocated": lambda *_, **__: self._reset(),
            "memory_stats": lambda *_, **__: self._stats(),
            "memory_summary": lambda *_, **__: self._summary(),
            "mem_get_info": lambda *_, **__: self._free_and_total(),
            "get_memory_info": lambda *_, **__: self._free_and_total(),
        }

    def _play(self) -> CachingAllocator:
        recording = self._recorder.recording
        events, stops = recording.events, recording.empty_cache_before
        streams = _DefaultStream(recording.stream_of) if recording.stream_of else None
        loads = {at: size for at, size in kernel_loads(recording).items() if at not in self._loaded}
        for stop in sorted({*stops[self._emptied :], *loads, len(events)}):
            allocated: list[int] = []
            reserved: list[int] = []
            self._allocator.feed(events[self._played : stop], allocated, reserved, streams=streams)
            self._most_allocated = max(self._most_allocated, max(allocated, default=0))
            self._most_reserved = max(self._most_reserved, max(reserved, default=0))
            self._played = stop
            while self._emptied < len(stops) and stops[self._emptied] <= stop:
                self._allocator.empty_cache()
                self._emptied += 1
            if stop in loads:
                self._allocator.load_kernels(loads[stop])
                self._loaded.add(stop)
        return self._allocator

    def _peaks(self) -> tuple[int, int]:
        self._play()
        return self._most_allocated, self._most_reserved

    def _reset(self) -> None:
        allocator = self._play()
        self._most_allocated, self._most_reserved = allocator.allocated_bytes, allocator.reserved_bytes

    def _stats(self) -> dict[str, int]:
        allocator = self._play()
        stats: dict[str, int] = defaultdict(int)
        for name, current, peak in (
            ("allocated_bytes", allocator.allocated_bytes, self._most_allocated),
            ("active_bytes", allocator.allocated_bytes, self._most_allocated),
            ("reserved_bytes", allocator.reserved_bytes, self._most_reserved),
        ):
            stats[f"{name}.all.current"], stats[f"{name}.all.peak"] = current, peak
        return stats

    def _summary(self) -> str:
        allocator = self._play()
        return (
            f"allocated {format_gib(allocator.allocated_bytes)} (peak {format_gib(self._most_allocated)}), "
            f"reserved {format_gib(allocator.reserved_bytes)} (peak {format_gib(self._most_reserved)})"
        )

    def _free_and_total(self) -> tuple[int, int]:
        return self._total_bytes - self._play().reserved_bytes, self._total_bytes
