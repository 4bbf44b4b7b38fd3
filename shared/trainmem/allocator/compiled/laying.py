"""Streams of events put together of parts, by machine code; the same in Python where there is none."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

from trainmem.allocator.compiled.library import library

__all__ = ["ALLOCATED", "ALLOCATED_FIRST", "ALLOCATED_ONCE", "GIVEN", "Laid", "Parts", "Row"]

ALLOCATED, ALLOCATED_FIRST, ALLOCATED_ONCE = -1, -2, -3
_LEVELS = 3
GIVEN = -1
_BYTES = 8


class Parts:
    """The events of some parts, each of which makes so many ``ranks`` of allocations beside those made once.

    An event is three numbers. (`ALLOCATED`, size, rank) allocates what has that number among the sizes, as the
    rank-th of the part; with `ALLOCATED_FIRST` and rank -1 in a first row only, with `ALLOCATED_ONCE` only at the
    first place of its part there. (slot, size, rank) frees what has that rank in each of the parts that stand in the
    slot, and that size; (slot, `GIVEN`, 0) an allocation whose number is given, in a first row only. What has no
    bytes is neither allocated nor freed.
    """

    def __init__(self, parts: Sequence[Sequence[int]], ranks: Sequence[int]) -> None:
        self.parts = parts
        self.lengths = [len(code) // 3 for code in parts]
        self.rank_begin = array("i", accumulate(ranks, initial=0))
        self._events = array("i", chain.from_iterable(parts))
        self._event_begin = array("i", accumulate(self.lengths, initial=0))
        self.struct = _struct(self._events, self._event_begin, self.rank_begin, count=len(parts))

    def events(self, part: int) -> Iterator[tuple[int, int, int]]:
        """The events of a part."""
        code = iter(self.parts[part])
        return zip(code, code, code, strict=True)


class Row:
    """Parts in an order, and what they free of each other.

    ``order``: the part at each place. ``homes``: for each place, by slot, the places whose part made what is freed
    there, or ``~index`` of an allocation whose number is given. What has a rank in one part has it in all that stand
    in the same slot. ``levels``: 2 at the first place of each part, where a first row makes both `ALLOCATED_ONCE` and
    `ALLOCATED_FIRST`, and 1 at others, where it makes only these.
    """

    def __init__(self, parts: Parts, order: Sequence[int], homes: Sequence[Sequence[Sequence[int]]]) -> None:
        self.parts, self.order, self.homes = parts, order, homes
        slots = [slot for slots in homes for slot in slots]
        found: set[int] = set()
        self.levels: list[int] = []
        for part in order:
            self.levels.append(1 if part in found else 2)
            found.add(part)
        columns = (
            order,
            self.levels,
            accumulate(map(len, homes), initial=0),
            accumulate(map(len, slots), initial=0),
            [home for slot in slots for home in slot],
        )
        self._columns = tuple([array("i", column) for column in columns])
        self._struct = _struct(*self._columns, count=len(order))
        widest = [max(1, *map(len, slots)) if slots else 1 for slots in homes]
        self._most = sum([parts.lengths[part] * times for part, times in zip(order, widest, strict=True)])

    def lay(
        self, events: array[int], sizes: array[int], start: int, *, given: Sequence[int] = (), first: bool
    ) -> Laid:
        """Append the row's events: ``start`` allocations come before it, ``sizes`` are the sizes in bytes."""
        laid = Laid(
            before=array("i", bytes(4 * _LEVELS * self.parts.rank_begin[-1])),
            ranks=array("i", bytes(4 * len(self.order))),
            starts=array("q", bytes(_BYTES * (len(self.order) + 1))),
            begins=array("q", bytes(_BYTES * (len(self.order) + 1))),
        )
        code = library()
        if code is None:
            self._lay(events, sizes, start, given, first, laid)
            return laid
        end, numbers = len(events), array("q", given)
        events.frombytes(bytes(_BYTES * self._most))
        count = code.trainmem_lay(
            ctypes.addressof(self.parts.struct),
            ctypes.addressof(self._struct),
            sizes.buffer_info()[0],
            numbers.buffer_info()[0],
            first,
            start,
            laid.before.buffer_info()[0],
            laid.ranks.buffer_info()[0],
            laid.starts.buffer_info()[0],
            laid.begins.buffer_info()[0],
            events.buffer_info()[0] + _BYTES * end,
        )
        del events[end + count :]
        return laid

    def _lay(
        self,
        events: array[int],
        sizes: array[int],
        start: int,
        given: Sequence[int],
        first: bool,
        laid: Laid,
    ) -> None:
        parts, before, ranks, starts = self.parts, laid.before, laid.ranks, laid.starts
        for level in range(_LEVELS if first else 1):
            shift = level * parts.rank_begin[-1]
            for part in range(len(parts.parts)):
                made = 0
                for slot, size, rank in parts.events(part):
                    if slot < 0 and sizes[size] > 0 and ~slot <= level:
                        if rank >= 0:
                            before[shift + parts.rank_begin[part] + rank] = made
                        made += 1
        begin, allocations = len(events), start
        for place, part in enumerate(self.order):
            level = self.levels[place] if first else 0
            ranks[place] = parts.rank_begin[part] + level * parts.rank_begin[-1]
            starts[place], laid.begins[place] = allocations, len(events) - begin
            for slot, size, rank in parts.events(part):
                if slot < 0:
                    if sizes[size] > 0 and ~slot <= level:
                        events.append(sizes[size])
                        allocations += 1
                elif first if size == GIVEN else sizes[size] > 0:
                    for home in self.homes[place][slot]:
                        events.append(~(laid.number(home, rank) if home >= 0 else given[~home]))
        starts[-1], laid.begins[-1] = allocations, len(events) - begin


@dataclass(frozen=True, slots=True)
class Laid:
    """Where a row's allocations went.

    ``before``: for each part and rank, how many allocations the part makes before that one: in a steady row, then in
    a first one, then at its first place there. ``ranks``: for each place, where those of its part begin. ``starts``,
    ``begins``: for each place and behind the last, how many allocations, and how many of the row's events, come
    before it.
    """

    before: array[int]
    ranks: array[int]
    starts: array[int]
    begins: array[int]

    def number(self, place: int, rank: int) -> int:
        """The number of the allocation that has a rank in the part at a place."""
        return self.starts[place] + self.before[self.ranks[place] + rank]


def _struct(*columns: array[int], count: int) -> ctypes.Array[ctypes.c_int64]:
    """``Parts`` or ``Row`` of laying.c: the addresses of the columns, then a count, each of eight bytes."""
    return (ctypes.c_int64 * (len(columns) + 1))(*[column.buffer_info()[0] for column in columns], count)
