"""What fills the peak: the largest sums of live allocations by module and op."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from trainmem.instant import short_op
from trainmem.recording import Counters, Recording

__all__ = ["Contributor", "contributors"]


@dataclass(frozen=True, slots=True)
class Contributor:
    """Bytes that one op of one module holds at an instant."""

    module: str
    op: str
    size_bytes: int


def contributors(recording: Recording, result: Counters, event: int, most: int = 10) -> list[Contributor]:
    """The ``most`` largest after event number ``event``, whole blocks as the counters count them."""
    live: dict[int, int] = {}
    number = 0
    for value in recording.events[: event + 1]:
        if value > 0:
            live[number] = result.block_bytes[number]
            number += 1
        else:
            del live[~value]
    totals: Counter[tuple[str, str]] = Counter()
    for allocation, size in live.items():
        totals[recording.module_of[allocation], short_op(recording.op_of[allocation])] += size
    return [Contributor(module, op, size) for (module, op), size in totals.most_common(most)]
