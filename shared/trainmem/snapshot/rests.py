"""True sizes of blocks whose allocation was not recorded.

A free of such a block tells its request, not the rest that sat in the block with it. But the rest shows in
its surroundings. In the large pool a free range is always larger than the largest rest (1 MiB), because it
began as a split or as a freed block; so a smaller gap behind a block is that block's rest, and so is what
lies between a block and an allocation that is later placed less than that behind it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from trainmem.allocator import AllocatorSettings
from trainmem.allocator.settings import MAX_BYTES_OF_SMALL_POOL
from trainmem.snapshot.extents import largest_rest_bytes
from trainmem.snapshot.model import Action, Trace

__all__ = ["add_rests"]


def add_rests(
    addresses: list[int],
    sizes: list[int],
    ends: list[int],
    *,
    trace: Trace,
    segments: list[tuple[int, int]],
    settings: AllocatorSettings,
) -> int:
    """Grow ``sizes`` (rounded requests of blocks there at the start) in place; how many stay uncertain.

    ``segments`` are the ranges reserved at the start; ``ends`` the events that free the blocks.
    """
    order = sorted(range(len(addresses)), key=addresses.__getitem__)
    starts = [addresses[number] for number in order]
    segment_starts = [start for start, _ in segments]
    room: dict[int, int] = {}
    for place, number in enumerate(order):
        end = starts[place] + sizes[number]
        if sizes[number] <= MAX_BYTES_OF_SMALL_POOL:
            continue
        most = largest_rest_bytes(sizes[number], settings)
        at = bisect_right(segment_starts, starts[place]) - 1
        if at < 0 or sum(segments[at]) < end:
            continue
        limit = sum(segments[at])
        if place + 1 < len(starts):
            limit = min(limit, max(starts[place + 1], end))
        if limit - end <= most:
            sizes[number] += limit - end
        elif most > 512:
            room[place] = end + most
    if room:
        _learn_from_neighbours(room, order, starts, sizes, ends, trace)
    return len(room)


def _learn_from_neighbours(
    room: dict[int, int], order: list[int], starts: list[int], sizes: list[int], ends: list[int], trace: Trace
) -> None:
    open_starts = [starts[place] for place in sorted(room)]
    places = sorted(room)
    for event, (action, address) in enumerate(zip(trace.action, trace.address, strict=True)):
        if action != Action.ALLOC:
            continue
        at = bisect_left(open_starts, address) - 1
        if at < 0:
            continue
        place = places[at]
        number = order[place]
        end = starts[place] + sizes[number]
        if place in room and end <= address <= room[place] and event < ends[number]:
            sizes[number] += address - end
            del room[place]
