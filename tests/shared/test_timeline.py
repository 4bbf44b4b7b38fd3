"""One step on a clock: instants in order, totals that add up, sentences with the step's own numbers."""

import pytest

from trainmem.buckets import BUCKETS
from trainmem.estimate import estimate, notices, timeline
from trainmem.job import TrainingJob
from trainmem.timeline import Instant, Timeline
from trainmem.units import GIB

JOB = TrainingJob(model="gpt2-124m", micro_batch=8, sequence_length=512)


@pytest.mark.parametrize("first_step", [False, True])
@pytest.mark.parametrize("change", [{}, {"checkpointing": "full"}, {"accumulation": 2}, {"optimizer": "sgd"}])
def test_instants_are_in_order_and_add_up(change, first_step):
    step = timeline(JOB.with_(**change), first_step=first_step)
    places = [instant.x for instant in step.instants]
    assert places == sorted(places)
    assert (places[0], places[-1]) == (0, 1)
    assert all(sum(instant.buckets.values()) == instant.total_bytes for instant in step.instants)
    assert all(instant.sentence.endswith(".") for instant in step.instants)
    phases = dict.fromkeys(instant.phase for instant in step.instants)
    assert tuple(phases) == ("forward", "backward", "optimizer", "zero_grad")


def test_the_highest_instant_is_the_estimates_peak():
    step, answer = timeline(JOB), estimate(JOB)
    top = max(step.instants, key=lambda instant: instant.total_bytes)
    assert top.name == "the peak"
    assert top.total_bytes == answer.peak_allocated_bytes
    assert dict(top.buckets) == answer.buckets_at_peak
    assert max(sum(point.buckets.values()) for point in step.curve) == top.total_bytes


def test_blocks_are_told_at_the_ends_and_in_the_middle():
    names = [instant.name for instant in timeline(JOB).instants]
    expected = [
        "start",
        "after the embedding",
        "after block 1 of 12",
        "after block 2 of 12",
        "after block 6 of 12",
        "after block 12 of 12",
        "logits",
        "loss",
        "end of forward",
        "backward of block 12 done",
        "backward of block 6 done",
        "backward of block 1 done",
        "end of backward",
        "the optimizer's highest",
        "end of the optimizer step",
        "after zero_grad",
    ]
    assert [name for name in names if name != "the peak"] == expected


def test_every_block_saves_as_much():
    at = {instant.name: instant.total_bytes for instant in timeline(JOB).instants}
    one = at["after block 2 of 12"] - at["after block 1 of 12"]
    assert at["after block 6 of 12"] - at["after block 2 of 12"] == pytest.approx(4 * one, rel=0.01)


def step_of(*instants):
    full = [
        Instant(
            name=name,
            phase=phase,
            sentence="So.",
            x=0.0,
            buckets=dict.fromkeys(BUCKETS, 0) | {bucket: size * GIB for bucket, size in sizes.items()},
            total_bytes=sum(sizes.values()) * GIB,
        )
        for name, phase, sizes in instants
    ]
    return Timeline(step="steady", instants=tuple(full), curve=())


STEADY = step_of(
    ("start", "forward", {"weights": 4, "optimizer_state": 8}),
    ("loss", "forward", {"weights": 4, "optimizer_state": 8, "activations": 10, "logits": 3}),
    ("end", "backward", {"weights": 4, "optimizer_state": 8, "gradients": 4, "activations": 1}),
)
FIRST = step_of(
    ("start", "forward", {"weights": 4}),
    ("loss", "forward", {"weights": 4, "activations": 10, "logits": 3}),
    ("end", "optimizer", {"weights": 4, "gradients": 4, "optimizer_state": 8}),
)


def test_the_peak_is_not_the_sum_of_maxima():
    peak, _, _ = notices(FIRST, STEADY, False)
    assert "in forward: 25.0 GiB" in peak
    assert "activations (10.0 GiB) and optimizer state (8.00 GiB)" in peak
    assert "would say 29.0 GiB" in peak


def test_activations_and_gradients_cross():
    _, crossing, _ = notices(FIRST, STEADY, False)
    assert "to 10.0 GiB" in crossing
    assert "grow to 4.00 GiB" in crossing
    assert "at most 10.0 GiB" in crossing
    assert "second forward" in notices(FIRST, STEADY, True)[1]


def test_the_first_step_begins_without_state():
    _, _, first = notices(FIRST, STEADY, False)
    assert "begins at 4.00 GiB, every later one at 12.0 GiB" in first
    assert "Step 1 peaks at 17.0 GiB, step 2 at 25.0 GiB" in first


def test_an_optimizer_without_state_is_said_so():
    plain = step_of(
        ("start", "forward", {"weights": 4}), ("loss", "forward", {"weights": 4, "activations": 2})
    )
    assert "keeps nothing between steps" in notices(plain, plain, False)[2]


def test_a_peak_after_the_first_update_is_the_same_in_every_step():
    late = step_of(
        ("start", "forward", {"weights": 4}),
        ("top", "optimizer", {"weights": 4, "optimizer_state": 8, "temporaries": 20}),
    )
    assert "tells the truth" in notices(late, late, False)[2]
