"""Steps and micro batches that repeat: recorded once, written down again."""

from __future__ import annotations

from dataclasses import dataclass

from trainmem.recording import Mark, Recording

__all__ = ["Span", "append_copy", "begin"]


@dataclass(frozen=True, slots=True)
class Span:
    """Where a part of a recording begins: its first event, allocation and mark."""

    event: int
    allocation: int
    mark: int


def begin(recording: Recording) -> Span:
    """A part begins here."""
    return Span(len(recording.events), len(recording.bucket_of), len(recording.marks))


def append_copy(
    recording: Recording,
    start: Span,
    before: Span,
    *,
    step: int,
    until: Span | None = None,
    micro_shift: int = 0,
) -> bool:
    """Write the part from ``start`` to ``until`` (the end) once more at the end, as step number ``step``.

    What the part frees of the part before it (from ``before`` on), the copy frees of the part itself: of its
    survivors with the same size, op and module, the oldest first. False, with nothing written, where a free has
    no such counterpart: the part is then not one that repeats.
    """
    here = begin(recording)
    end = until or here
    shift = here.allocation - start.allocation
    events = recording.events[start.event : end.event]
    freed = {~event for event in events if event < 0}
    survivors: dict[tuple[int, str, str], list[int]] = {}
    number = start.allocation
    for event in events:
        if event > 0:
            if number not in freed:
                signature = event, recording.op_of[number], recording.module_of[number]
                survivors.setdefault(signature, []).append(number)
            number += 1
    sizes = _sizes(recording, before.event, before.allocation, start.event)
    copies: list[int] = []
    for event in events:
        if event > 0 or ~event >= start.allocation:
            copies.append(event if event > 0 else event - shift)
            continue
        freed_before = ~event
        if freed_before < before.allocation:
            return False
        signature = sizes[freed_before], recording.op_of[freed_before], recording.module_of[freed_before]
        if not survivors.get(signature):
            return False
        copies.append(~survivors[signature].pop(0))
    recording.events.extend(copies)
    for values in (recording.bucket_of, recording.op_of, recording.module_of):
        values += values[start.allocation : end.allocation]  # type: ignore[operator]
    for number in range(start.allocation, end.allocation):
        if number in recording.stream_of:
            recording.stream_of[number + shift] = recording.stream_of[number]
    distance = here.event - start.event
    for mark in recording.marks[start.mark : end.mark]:
        recording.marks.append(Mark(mark.event + distance, step, mark.phase, mark.micro + micro_shift))
    return True


def _sizes(recording: Recording, event: int, allocation: int, end: int) -> dict[int, int]:
    found = {}
    for value in recording.events[event:end]:
        if value > 0:
            found[allocation] = value
            allocation += 1
    return found
