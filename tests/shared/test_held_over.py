"""What a step still holds from the one before is named, and only where it is much."""

from __future__ import annotations

import pytest

from trainmem.buckets import BUCKETS, Bucket
from trainmem.held_over import held_over_note
from trainmem.recording import Recording, counters

MIB = 1 << 20


def steps(kept: tuple[tuple[int, Bucket, str, str], ...], count: int = 3) -> Recording:
    """Steps that each make ``kept`` and let go of the last ones only when their own forward has ended."""
    recording = Recording()
    recording.mark(0, "setup")
    recording.allocate(64 * MIB, BUCKETS.index("weights"), "empty")
    held: list[int] = []
    for step in range(1, count + 1):
        recording.mark(step, "forward")
        made = [
            recording.allocate(size, BUCKETS.index(bucket), op, module) for size, bucket, op, module in kept
        ]
        for number in held:
            recording.free(number)
        held = made
        recording.mark(step, "backward")
        recording.free(recording.allocate(MIB, BUCKETS.index("temporaries"), "mm"))
        recording.mark(step, "optimizer")
    return recording


def test_the_largest_holders_are_named() -> None:
    recording = steps(
        ((32 * MIB, "logits", "mm", "lm_head"), (8 * MIB, "activations", "add", ""), (4, "logits", "sum", ""))
    )
    note = held_over_note(recording, counters(recording), 3)
    assert note is not None
    assert "step 3 begins with 0.0391 GiB that step 2 made" in note
    assert "0.0312 GiB logits (lm_head: mm), 0.0078 GiB activations (add);" in note


@pytest.mark.parametrize("bucket", ["gradients", "optimizer_state", "cast_cache"])
def test_what_is_held_on_purpose_is_not(bucket: Bucket) -> None:
    recording = steps(((32 * MIB, bucket, "mm", ""),))
    assert held_over_note(recording, counters(recording), 3) is None


@pytest.mark.parametrize("step", [0, 1, 4])
def test_a_step_with_none_before_it_holds_nothing(step: int) -> None:
    recording = steps(((32 * MIB, "logits", "mm", ""),))
    assert held_over_note(recording, counters(recording), step) is None


def test_a_loss_alone_is_nothing() -> None:
    recording = steps(((4, "logits", "sum", ""),))
    assert held_over_note(recording, counters(recording), 3) is None
