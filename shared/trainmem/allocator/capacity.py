"""Does a stream of events fit a device, and if not, would expandable segments make it fit?"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from trainmem.allocator.oom import OutOfMemory
from trainmem.allocator.replay import Replay, replay
from trainmem.allocator.settings import AllocatorSettings

__all__ = ["CapacityAnswer", "CapacityVerdict", "check_capacity"]

CapacityAnswer = Literal["fits", "fits_with_expandable_segments", "out_of_memory"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CapacityVerdict:
    """What the machine would answer."""

    answer: CapacityAnswer
    replay: Replay
    """Under the settings asked for; complete only when the answer is ``fits``."""

    expandable: Replay | None
    """Under expandable segments, where they were tried."""

    capacity_bytes: int
    outside_bytes: int

    @property
    def oom(self) -> OutOfMemory | None:
        """The allocation that fails under the settings asked for."""
        return self.replay.oom

    @property
    def spare_bytes(self) -> int | None:
        """What the device has left at the peak of reserved memory; ``None`` when nothing fits."""
        if self.answer == "out_of_memory":
            return None
        fitting = self.expandable if self.expandable is not None else self.replay
        return self.capacity_bytes - self.outside_bytes - fitting.peak_reserved_bytes


def check_capacity(
    events: Sequence[int],
    *,
    capacity_bytes: int,
    outside_bytes: int = 0,
    settings: AllocatorSettings | None = None,
    streams: Sequence[int] | None = None,
    pools: Sequence[int] | None = None,
    empty_cache_before: Collection[int] = (),
) -> CapacityVerdict:
    """Replay ``events`` on a device of ``capacity_bytes``, of which ``outside_bytes`` are not PyTorch's.

    Outside are the CUDA context, libraries and other processes. When memory runs out and expandable
    segments are off, the replay is made once more with them.
    """
    settings = settings if settings is not None else AllocatorSettings()

    def attempt(tried: AllocatorSettings) -> Replay:
        return replay(
            events,
            settings=tried,
            capacity_bytes=capacity_bytes,
            outside_bytes=outside_bytes,
            streams=streams,
            pools=pools,
            empty_cache_before=empty_cache_before,
        )

    first, second = attempt(settings), None
    answer: CapacityAnswer = "fits"
    if first.oom is not None:
        answer = "out_of_memory"
        if not settings.expandable_segments:
            second = attempt(replace(settings, expandable_segments=True))
            if second.oom is None:
                answer = "fits_with_expandable_segments"
    return CapacityVerdict(
        answer=answer,
        replay=first,
        expandable=second,
        capacity_bytes=capacity_bytes,
        outside_bytes=outside_bytes,
    )
