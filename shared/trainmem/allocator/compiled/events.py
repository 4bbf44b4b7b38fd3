"""Streams of events as machine code reads them; the same in Python where there is none."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import islice

from trainmem.allocator.addresses import OUT_OF_ADDRESSES
from trainmem.allocator.compiled.library import library

__all__ = ["event_of", "first_freed", "packed_events"]


def packed_events(events: Sequence[int]) -> array[int]:
    """Events side by side in memory, themselves where they are. Raises ValueError for sizes beyond 8 EiB."""
    if isinstance(events, array) and events.typecode == "q":
        return events
    try:
        return array("q", events)
    except OverflowError as error:
        raise ValueError(f"events: {OUT_OF_ADDRESSES}") from error


def first_freed(events: array[int]) -> int | None:
    """The first of the allocations that events free; None where they free nothing."""
    code = library()
    if code is None:
        return min((~event for event in events if event < 0), default=None)
    found = int(code.trainmem_first_freed(events.buffer_info()[0], len(events)))
    return None if found < 0 else found


def event_of(events: array[int], number: int) -> int:
    """The index of the event that makes an allocation, by its number. Raises IndexError where none does."""
    code = library()
    if code is None:
        found = next(islice((at for at, event in enumerate(events) if event > 0), number, None), -1)
    else:
        found = int(code.trainmem_event_of(events.buffer_info()[0], len(events), number))
    if found < 0:
        raise IndexError(number)
    return found
