"""What fills the peak: the largest sums of live allocations by module and op."""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass

from trainmem.buckets import BUCKETS, Bucket
from trainmem.instant import short_op
from trainmem.recording import Counters, Recording

__all__ = ["Contributor", "contributors"]

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


@dataclass(frozen=True, slots=True)
class Contributor:
    """Bytes that one op of one module holds at an instant.

    ``module`` has ``*`` for the numbers of repeated blocks, ``modules`` is how many there are; outside any
    module it is empty.
    """

    module: str
    op: str
    bucket: Bucket
    size_bytes: int
    modules: int = 1


def contributors(
    recording: Recording,
    result: Counters,
    event: int,
    most: int = 10,
    *,
    among: Container[int] | None = None,
) -> list[Contributor]:
    """The ``most`` largest after event number ``event``, whole blocks as the counters count them.

    ``among``: of these allocations alone.
    """
    live: dict[int, int] = {}
    number = 0
    for value in recording.events[: event + 1]:
        if value > 0:
            live[number] = result.block_bytes[number]
            number += 1
        else:
            del live[~value]
    totals: dict[tuple[str, str, int], int] = {}
    modules: dict[tuple[str, str, int], set[str]] = {}
    for allocation, size in live.items():
        if among is not None and allocation not in among:
            continue
        module = recording.module_of[allocation]
        key = (
            _NUMBER.sub("*", module),
            short_op(recording.op_of[allocation]),
            recording.bucket_of[allocation],
        )
        totals[key] = totals.get(key, 0) + size
        modules.setdefault(key, set()).add(module)
    largest = sorted(totals, key=lambda key: -totals[key])[:most]
    return [
        Contributor(module, op, BUCKETS[bucket], totals[module, op, bucket], len(modules[module, op, bucket]))
        for module, op, bucket in largest
    ]
