"""The textbook job: GPT-2 774M at 1,024 tokens, one lever at a time, and the largest batch of each."""

from __future__ import annotations

from trainmem.job import TrainingJob
from trainmem_backend.measure.trial import Pass, Trial

__all__ = ["BASELINE", "trials"]

BASELINE = TrainingJob(model="gpt2-774m", micro_batch=8, sequence_length=1024)

_CONFIGURATIONS = {
    "baseline": BASELINE,
    "checkpointing": BASELINE.with_(checkpointing="full"),
    "AdamW8bit": BASELINE.with_(optimizer="adamw8bit"),
    "checkpointing + AdamW8bit": BASELINE.with_(checkpointing="full", optimizer="adamw8bit"),
}


def trials() -> list[Trial]:
    """Step 1 and the steady step are two figures of each row."""
    every: tuple[Pass, ...] = ("memory", "hooks", "timing")
    steps = [
        Trial(suite="lesson", label=label, job=job, passes=every) for label, job in _CONFIGURATIONS.items()
    ]
    accumulation = BASELINE.with_(micro_batch=2, accumulation=4)
    steps.append(Trial(suite="lesson", label="accumulation 4 x 2", job=accumulation, passes=every))
    largest = [
        Trial(
            suite="lesson",
            label=f"largest batch, {label}",
            kind="largest_batch",
            job=job.with_(micro_batch=1),
            passes=(),
        )
        for label, job in _CONFIGURATIONS.items()
    ]
    return [*steps, *largest]
