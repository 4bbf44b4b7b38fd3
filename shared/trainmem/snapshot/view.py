"""What a drawing needs: the largest blocks one by one, all others summed, small enough for a page.

With up to `_MOST_BLOCKS` blocks nothing is summed and every instant is exact. Beyond that, the smaller blocks
are summed by bucket and call site at a few hundred instants (the highest of each stretch, so that no peak is
lost), and the page is exact at those.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from heapq import nlargest
from itertools import accumulate, compress, repeat
from operator import add, lt, not_
from typing import Any

from trainmem.buckets import BUCKETS
from trainmem.recording import PHASES
from trainmem.snapshot.analysis import Analysis, DeviceAnalysis
from trainmem.snapshot.callsites import BEFORE_SITE, folded
from trainmem.snapshot.notes import name_of
from trainmem.snapshot.replay import BEFORE
from trainmem.snapshot.timeline import highest_instants

__all__ = ["view_of"]

_MOST_BLOCKS = 8000
_STOPS = 320
_MOST_SITES = 48
_MOST_STACKS = 24
_MOST_FRAMES = 40
_MOST_ROWS = 160
_MOST_SPANS = 3000
_MOST_RESERVED = 2000
_OTHER_SITES = "other call sites"
_BEFORE_PHASE = len(PHASES)


def view_of(analysis: Analysis, device: DeviceAnalysis) -> dict[str, Any]:
    """The drawing of one device, as JSON."""
    names = _Names(analysis, device)
    return {
        "name": name_of(device),
        "instants": len(device.trace),
        "peak": device.peak_instant,
        "peak_bytes": device.peak_allocated_bytes,
        "peak_requested_bytes": device.requested_at_peak_bytes,
        "parts": [_part(device, names, start, end) for start, end in _stretches(device)],
        "reserved": _reserved(device),
        "sites": names.sites,
        "stacks": names.stacks(),
        "spans": [
            [PHASES.index(span.phase), span.step, span.start, span.end]
            for span in device.timetable.spans[:_MOST_SPANS]
        ],
        "times_ms": _times(device),
        "failures": [failure.event for failure in device.failures],
    }


def _stretches(device: DeviceAnalysis) -> list[tuple[int, int]]:
    """The whole recording; and in a long one, the step with the peak and the last whole step more closely."""
    whole = (0, len(device.trace))
    if len(device.replay.blocks) <= _MOST_BLOCKS:
        return [whole]
    last = [step for step in device.steps if step.is_whole][-1:]
    chosen = [step for step in device.steps if step.start <= device.peak_instant <= step.end][:1] + last
    return [whole, *dict.fromkeys((step.start, step.end) for step in chosen)]


def _part(device: DeviceAnalysis, names: _Names, start: int, end: int) -> dict[str, Any]:
    """The blocks of a stretch: all of them, or the largest ones and the sums of the others."""
    blocks = device.replay.blocks
    numbers: Sequence[int] = range(len(blocks))
    if start > 0 or end < len(device.trace) or BEFORE in blocks.end:
        numbers = [
            number
            for number, (first, last) in enumerate(zip(blocks.start, blocks.end, strict=True))
            if first < end and last >= start and last != BEFORE
        ]
    stops: list[int] = []
    rest: list[dict[str, Any]] = []
    if len(numbers) > _MOST_BLOCKS:
        least = _least_size(blocks.size, numbers)
        stops = _stops(device, start, end)
        is_large = list(map(least.__le__, map(blocks.size.__getitem__, numbers)))
        rest = _summed(device, names, list(compress(numbers, map(not_, is_large))), stops)
        numbers = list(compress(numbers, is_large))
    return {
        "from": start,
        "to": end,
        "blocks": {
            "start": _steps(blocks.start[number] + 1 for number in numbers),
            "length": [blocks.end[number] - blocks.start[number] for number in numbers],
            "bytes": [blocks.size[number] for number in numbers],
            "rest": [blocks.size[number] - blocks.requested[number] for number in numbers],
            "bucket": [names.bucket[number] for number in numbers],
            "site": [names.site[number] for number in numbers],
            "phase": [names.phase[number] for number in numbers],
        },
        "stops": {"at": stops, "bytes": [device.curves.allocated[at] for at in stops]},
        "rest": rest,
    }


def _least_size(sizes: Sequence[int], numbers: Sequence[int]) -> int:
    """The smallest size such that at most `_MOST_BLOCKS` blocks have it or more."""
    count = 0
    least = 1 << 64
    for size, blocks in sorted(Counter(map(sizes.__getitem__, numbers)).items(), reverse=True):
        count += blocks
        if count > _MOST_BLOCKS:
            break
        least = size
    return least


def _steps(values: Any) -> list[int]:
    """Differences between neighbours: shorter to write than the values."""
    result: list[int] = []
    last = 0
    for value in values:
        result.append(value - last)
        last = value
    return result


class _Names:
    """Bucket, call site and phase of every block, as numbers. Sites that fill little share one."""

    def __init__(self, analysis: Analysis, device: DeviceAnalysis) -> None:
        self._stacks = analysis.snapshot.stacks
        self._at_peak = device.call_sites_at_peak
        facts, blocks = analysis.facts, device.replay.blocks
        weight = [0] * len(facts.sites)
        for stack, size, start, end in zip(blocks.stack, blocks.size, blocks.start, blocks.end, strict=True):
            weight[stack] += size * (end - start)
        heavy: dict[str, int] = {}
        for site, filled in zip(facts.sites, weight, strict=True):
            if filled > 0:
                heavy[site] = heavy.get(site, 0) + filled
        # Whatever fills the peak has its name, however short it lives.
        first = [site.site for site in self._at_peak[: _MOST_SITES // 2]]
        ranked = dict.fromkeys([*first, *nlargest(_MOST_SITES, heavy, key=heavy.__getitem__)])
        self.sites = [*list(ranked)[:_MOST_SITES], _OTHER_SITES]
        index = {name: number for number, name in enumerate(self.sites)}
        other = len(self.sites) - 1
        site_of_stack = [index.get(site, other) for site in facts.sites]
        self.site = list(map(site_of_stack.__getitem__, blocks.stack))
        for number in range(blocks.start.count(BEFORE)):
            if blocks.stack[number] < 0:
                self.site[number] = index.get(BEFORE_SITE, other)
        phase_of_span = [PHASES.index(span.phase) for span in device.timetable.spans]
        # Span -1, before the recording, finds the last entry.
        phase_of_span = [*phase_of_span, _BEFORE_PHASE] if phase_of_span else [_BEFORE_PHASE]
        self.phase = list(map(phase_of_span.__getitem__, device.attribution.span_of_start))
        self.bucket = device.attribution.bucket_of

    def key(self, block: int) -> tuple[int, int, int]:
        return self.bucket[block], self.site[block], self.phase[block]

    def stacks(self) -> list[list[str]]:
        """An example stack for the first call sites, in the order of the names."""
        known = {site.site: site.stack for site in self._at_peak}
        return [
            folded(self._stacks, known[name])[:_MOST_FRAMES] if known.get(name, -1) >= 0 else []
            for name in self.sites[:_MOST_STACKS]
        ]


def _stops(device: DeviceAnalysis, start: int, end: int) -> list[int]:
    """Instants at which the smaller blocks are summed: the highest ones, and where the spans begin."""
    found = set(highest_instants(device.curves, _STOPS, start, end))
    spans = [span.start for span in device.timetable.spans if start <= span.start <= end]
    if len(spans) < _STOPS // 2:
        found.update(spans)
    return sorted(found)


def _summed(
    device: DeviceAnalysis, names: _Names, numbers: list[int], stops: list[int]
) -> list[dict[str, Any]]:
    """Bytes of blocks by bucket, call site and phase at the stops; what is small everywhere is put together."""
    blocks = device.replay.blocks
    firsts = list(map(bisect_right, repeat(stops), map(blocks.start.__getitem__, numbers)))
    lasts = list(map(bisect_right, repeat(stops), map(blocks.end.__getitem__, numbers)))
    seen = compress(zip(numbers, firsts, lasts, strict=True), map(lt, firsts, lasts))
    sizes, end = blocks.size, len(stops) + 1
    changes: dict[tuple[int, int, int], list[int]] = {}
    for number, first, last in seen:
        key = names.key(number)
        row = changes.get(key)
        if row is None:
            row = changes[key] = [0] * end
        size = sizes[number]
        row[first] += size
        row[last] -= size
    rows = {key: list(accumulate(row[:-1])) for key, row in changes.items()}
    kept = nlargest(_MOST_ROWS, rows, key=lambda key: max(rows[key]))
    merged: dict[tuple[int, int, int], list[int]] = {key: rows.pop(key) for key in kept}
    other = len(names.sites) - 1
    for (bucket, _, phase), row in rows.items():
        key = (bucket, other, phase)
        merged[key] = list(map(add, merged[key], row)) if key in merged else row
    return [
        {"bucket": bucket, "site": site, "phase": phase, "bytes": _steps(row)}
        for (bucket, site, phase), row in merged.items()
    ]


def _reserved(device: DeviceAnalysis) -> list[list[int]]:
    """Where the reserved bytes change, thinned to what can be seen."""
    reserved = device.curves.reserved
    changes = [
        [0, reserved[0]],
        *([event + 1, reserved[event + 1]] for event in device.replay.segment_events),
    ]
    stride = -(-len(changes) // _MOST_RESERVED)
    return changes if stride <= 1 else [*changes[::stride], changes[-1]]


def _times(device: DeviceAnalysis) -> list[list[float]]:
    """Milliseconds since the first event at a few hundred instants; empty where the file has no times."""
    times = device.trace.time_us
    if not len(times) or not times[0]:
        return []
    stride = max(1, len(times) // _STOPS)
    return [[at + 1, round((times[at] - times[0]) / 1000, 3)] for at in range(0, len(times), stride)]


BUCKET_NAMES = [bucket.replace("_", " ") for bucket in BUCKETS]
"""Names as they are shown."""
