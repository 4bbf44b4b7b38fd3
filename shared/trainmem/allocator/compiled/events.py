"""Streams of events as machine code reads and writes them; the same in Python where there is none."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from trainmem.allocator.addresses import OUT_OF_ADDRESSES
from trainmem.allocator.compiled.library import library

__all__ = ["Stretch", "first_freed", "packed_events"]

_BYTES = 8


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


class Stretch:
    """Events to be laid down again and again: each time the same sizes, and frees of what lies elsewhere each time.

    ``code``: (bytes, -1) allocates; (place, slot) frees the allocation that stands so many after the one whose
    number is given for that slot.
    """

    __slots__ = ("_code", "_slots", "_values")

    def __init__(self, code: Sequence[tuple[int, int]]) -> None:
        self._code = code
        values, slots = zip(*code, strict=True) if code else ((), ())
        self._values, self._slots = array("q", values), array("i", slots)

    def lay(self, events: array[int], bases: Sequence[int]) -> None:
        """Append the events, with the number of an allocation for each slot."""
        code = library()
        if code is None:
            events.extend([value if slot < 0 else ~(bases[slot] + value) for value, slot in self._code])
            return
        end, count = len(events), len(self._values)
        events.frombytes(bytes(_BYTES * count))
        numbers = array("q", bases)
        code.trainmem_lay(
            self._values.buffer_info()[0],
            self._slots.buffer_info()[0],
            count,
            numbers.buffer_info()[0],
            events.buffer_info()[0] + _BYTES * end,
        )
