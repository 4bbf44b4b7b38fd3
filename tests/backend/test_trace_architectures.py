"""Every architecture's step: it traces in every dtype, its buckets add up, and a steady step is steady."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace

import pytest
from small_models import CAUSAL, CLASSIFIERS, small_job

from trainmem.buckets import BUCKETS
from trainmem.recording import Recording, StepFigures, counters, read_step
from trainmem.tape.families import FORWARD
from trainmem_backend.trace import TraceError, trace

pytestmark = pytest.mark.torch

WEIGHT_BYTES = {"fp32": 4, "amp_bf16": 4, "bf16": 2}
RELATIVES = frozenset(
    [
        "apertus",
        "arcee",
        "biogpt",
        "bitnet",
        "cohere2",
        "ctrl",
        "diffllama",
        "electra",
        "ernie4_5",
        "falcon_mamba",
        "flex_olmo",
        "glm4_moe",
        "granitemoehybrid",
        "jetmoe",
        "lfm2",
        "minimax",
        "olmo3",
        "openai-gpt",
        "phimoe",
        "seed_oss",
        "xglm",
    ]
)
"""Close to another one of the list: one dtype is enough."""

EVERY = [
    (family, task, precision)
    for task, families in (("causal_lm", CAUSAL), ("sequence_classification", CLASSIFIERS))
    for family in families
    for precision in WEIGHT_BYTES
    if precision == "amp_bf16" or family not in RELATIVES
]

CANNOT = {
    ("deberta", "amp_bf16"): "value cannot be converted to type torch.bfloat16 without overflow",
    ("deberta", "bf16"): "expected m1 and m2 to have the same dtype",
}
"""What transformers itself cannot run."""


@pytest.fixture(autouse=True)
def what_is_there_is_not_collected() -> Iterator[None]:
    """Every trace collects garbage once the model is built; among all that is imported that takes its time."""
    gc.freeze()
    yield
    gc.unfreeze()


def each_is_freed_at_most_once(recording: Recording) -> bool:
    made = 0
    live: set[int] = set()
    for event in recording.events:
        if event > 0:
            live.add(made)
            made += 1
        elif ~event not in live:
            return False
        else:
            live.remove(~event)
    return made == len(recording.bucket_of) == len(recording.op_of) == len(recording.module_of)


def without_event(figures: StepFigures) -> StepFigures:
    """Where in the recording the peak is differs from step to step."""
    return replace(figures, peak_event=0)


def test_every_family_of_the_tape_is_among_them() -> None:
    assert set(FORWARD) <= CAUSAL.keys() | CLASSIFIERS.keys()
    assert len(CAUSAL.keys() - set(FORWARD)) > 40


@pytest.mark.parametrize(("family", "task", "precision"), EVERY)
def test_a_step_of_every_architecture(family: str, task: str, precision: str) -> None:
    job = small_job(family, task, precision=precision)
    if (family, precision) in CANNOT:
        with pytest.raises(
            TraceError, match=rf"modeling_\w+\.py, line \d+: RuntimeError: {CANNOT[family, precision]}"
        ):
            trace(job)
        return
    # one dtype's third step is run as well, not written down again
    steps = 3 if precision == "bf16" else 2
    recording = trace(job, steps=steps, repeat=False)
    result = counters(recording)
    first, second, *later = (read_step(recording, result, step) for step in range(1, steps + 1))
    assert each_is_freed_at_most_once(recording)
    for figures in (first, second):
        assert list(figures.buckets_at_peak) == list(BUCKETS)
        assert min(figures.buckets_at_peak.values()) >= 0
        assert sum(figures.buckets_at_peak.values()) == figures.peak_allocated_bytes
    # Adam's two moments come with the first step and stay; gradients are gone at the end of every one
    weights = recording.parameters * WEIGHT_BYTES[precision]
    gradients = second.phases["after_backward_bytes"] - second.phases["start_bytes"]
    states = second.phases["start_bytes"] - first.phases["start_bytes"]
    assert weights / 2 < gradients < weights * 1.3
    assert states >= 2 * gradients
    assert second.buckets_at_peak["weights"] >= weights
    assert second.buckets_at_peak["optimizer_state"] >= 2 * gradients
    assert second.phases["after_zero_grad_bytes"] == second.phases["start_bytes"]
    assert all(without_event(figures) == without_event(second) for figures in later)
