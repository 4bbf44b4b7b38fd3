"""Jobs that nobody chose: models, shapes and levers drawn by number, so that no prediction was made with them in mind.

The numbers are the seeds: the list is the same wherever it is made, as long as catalogue and levers are.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count, islice
from typing import Any, get_args

from trainmem.estimate import estimate
from trainmem.job import Lora, Precision, TrainingJob
from trainmem.model import catalogue
from trainmem_backend.measure.trial import Trial

__all__ = ["trials"]

_JOBS = 64
_MOST_PARAMETERS = 4_200_000_000
_MOST_BYTES = 20 << 30
"""Predicted, so that a GPU of 24 GB runs them all."""

_PRECISIONS = tuple(name for name in get_args(Precision) if name != "fsdp_mp_bf16")
"""Those of one GPU."""
_ROUNDED = ("adamw", "adamw_fused", "adamw_loop", "sgd", "sgd_momentum")
"""Optimizers that Kahan and stochastic rounding go with."""
_OPTIMIZERS = (*_ROUNDED, "adafactor", "muon", "adamw8bit", "paged_adamw8bit", "lion8bit")


def trials() -> list[Trial]:
    """Memory alone, so that many run beside each other with ``--overlap``."""
    return [
        Trial(suite="random", label=f"draw {number}, {job.model}", job=job, passes=("memory",))
        for number, job in islice(_drawn(), _JOBS)
    ]


def _drawn() -> Iterator[tuple[int, TrainingJob]]:
    """Draws that are jobs, by their numbers: what a lever refuses, or is too large, is passed over."""
    entries = [
        found for found in catalogue.entries() if found.architecture().parameter_count < _MOST_PARAMETERS
    ]
    for number in count():
        try:
            job = TrainingJob(**_draw(random.Random(number), entries))
            peak = estimate(job, "tape", "fast").peak_allocated_bytes
        except ValueError:
            continue
        if peak <= _MOST_BYTES:
            yield number, job


def _draw(rng: random.Random, entries: list[Any]) -> dict[str, Any]:
    entry = rng.choice(entries)
    precision = rng.choice(_PRECISIONS)
    levers: dict[str, Any] = {
        "model": entry.name,
        "task": entry.task,
        "micro_batch": rng.choice((1, 1, 2, 3, 4, 6)),
        "sequence_length": rng.choice((256, 512, 777, 1024, 1531, 2048, 3000)),
        "accumulation": rng.choice((1, 1, 1, 2, 3)),
        "precision": precision,
        "optimizer": rng.choice(_ROUNDED if precision in ("bf16_kahan", "bf16_stochastic") else _OPTIMIZERS),
        "attention": rng.choice(("sdpa", "sdpa", "eager")),
        "checkpointing": rng.choice(("none", "none", "full", "selective", "sqrt")),
        "zero_grad": "zeros" if rng.random() < 0.1 else "none",
    }
    if rng.random() < 0.35:
        levers["lora"] = Lora(rank=rng.choice((4, 8, 16, 64)))
        levers["base_quantization"] = rng.choice(("none", "nf4", "int8"))
    return levers
