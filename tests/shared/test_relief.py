"""Levers that a peak's largest buckets ask for, in the order and the words of a plan."""

from __future__ import annotations

import pytest

from trainmem.buckets import BUCKETS, Bucket
from trainmem.levers import LEVERS_BY_COST
from trainmem.recording import Recording, StepFigures
from trainmem.relief import _RELIEVE, relief_note

GIB = 1 << 30
PARAMETERS = GIB


def step(sizes: dict[Bucket, int]) -> StepFigures:
    peak = sum(sizes.values())
    return StepFigures({}, peak, peak, 0, "backward", sizes, "mm", "")


def note(sizes: dict[Bucket, int], trained: int = PARAMETERS) -> str | None:
    return relief_note(Recording(parameters=PARAMETERS, trainable_parameters=trained), step(sizes))


def test_every_lever_is_one_of_a_plan() -> None:
    keys = {lever.key for lever in LEVERS_BY_COST}
    assert {key for levers in _RELIEVE.values() for key in levers} <= keys
    assert set(_RELIEVE) <= set(BUCKETS)


@pytest.mark.parametrize(
    ("sizes", "levers"),
    [
        (
            {"weights": 4 * GIB, "activations": 50 * GIB, "logits": 30 * GIB},
            "half the micro batch with twice the accumulation, the fused loss, checkpointing",
        ),
        (
            {"weights": 4 * GIB, "gradients": 4 * GIB, "optimizer_state": 8 * GIB},
            "8-bit optimizer state, pure bf16 with stochastic rounding, LoRA on a 16-bit base, QLoRA in bf16",
        ),
        (
            {"weights": 2 * GIB, "gradients": 2 * GIB, "optimizer_state": 2 * GIB},
            "LoRA on a 16-bit base, QLoRA in bf16",
        ),
    ],
)
def test_the_levers_of_the_largest_buckets(sizes: dict[Bucket, int], levers: str) -> None:
    found = note(sizes)
    assert found is not None
    assert f"cheapest first: {levers} (docs" in found


def test_what_is_small_is_left_alone() -> None:
    found = note({"weights": 4 * GIB, "activations": 90 * GIB, "optimizer_state": 8 * GIB})
    assert found is not None
    assert found.startswith("most of the peak is activations 90.0 GiB; ")


def test_nothing_is_said_where_no_lever_is_left() -> None:
    assert note({"weights": GIB // 2}, trained=PARAMETERS // 100) is None
