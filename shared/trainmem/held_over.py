"""What a step still holds from the one before, as a loop does that keeps its last logits or loss by name."""

from __future__ import annotations

from trainmem.buckets import BUCKETS
from trainmem.contributors import contributors
from trainmem.recording import Counters, Recording
from trainmem.units import format_gib

__all__ = ["held_over_note"]

_OF_A_STEP = {BUCKETS.index(name) for name in ("activations", "logits", "temporaries")}
_WORTH_A_WORD = 0.01
"""Of the peak: a loss and a batch are always held."""
_MOST = 3


def held_over_note(recording: Recording, result: Counters, step: int) -> str | None:
    """One sentence on what forward and backward of step ``step - 1`` made and is alive when ``step`` begins.

    None where that is little. Gradients, cached casts and optimizer state are held on purpose.
    """
    first = {mark.step: mark.event for mark in reversed(recording.marks)}
    ended = [mark.event for mark in recording.marks if (mark.step, mark.phase) == (step - 1, "optimizer")]
    if step < 2 or step not in first or step - 1 not in first or not ended:
        return None
    begins = first[step]
    numbers = _made(recording, first[step - 1], ended[0])
    kept = contributors(recording, result, begins - 1, most=len(numbers), among=numbers)
    held = sum(one.size_bytes for one in kept)
    if held < _WORTH_A_WORD * max(result.allocated[begins:]):
        return None
    largest = ", ".join(
        f"{format_gib(one.size_bytes)} {one.bucket} ({one.module}: {one.op})"
        if one.module
        else f"{format_gib(one.size_bytes)} {one.bucket} ({one.op})"
        for one in kept[:_MOST]
        if one.size_bytes >= _WORTH_A_WORD * held
    )
    return (
        f"step {step} begins with {format_gib(held)} that step {step - 1} made and a name still holds: {largest}; "
        "`del` it at the end of the loop, or run the step in a function, and it is gone before the next forward"
    )


def _made(recording: Recording, start: int, end: int) -> frozenset[int]:
    """Allocations that only a step's own computation needs, made between two events."""
    before = sum(event > 0 for event in recording.events[:start])
    count = sum(event > 0 for event in recording.events[start:end])
    made = range(before, before + count)
    return frozenset(number for number in made if recording.bucket_of[number] in _OF_A_STEP)
