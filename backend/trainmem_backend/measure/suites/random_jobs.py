"""Jobs that nobody chose: models, shapes and levers drawn by number, so that no prediction was made with them in mind.

The numbers are the seeds: the list is the same wherever it is made, as long as catalogue and levers are.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count
from typing import Any, get_args

from trainmem.estimate import estimate
from trainmem.job import Lora, Precision, TrainingJob
from trainmem.model import catalogue
from trainmem_backend.measure.trial import Trial

__all__ = ["MOST_PARAMETERS", "OPTIMIZERS", "PRECISIONS", "ROUNDED", "drawn", "trials"]

_JOBS = 64
MOST_PARAMETERS = 4_200_000_000
_MOST_BYTES = 20 << 30
"""Predicted, so that a GPU of 24 GB runs them all."""

PRECISIONS = tuple(name for name in get_args(Precision) if name != "fsdp_mp_bf16")
"""Those of one GPU."""
ROUNDED = ("adamw", "adamw_fused", "adamw_loop", "sgd", "sgd_momentum")
"""Optimizers that Kahan and stochastic rounding go with."""
OPTIMIZERS = (*ROUNDED, "adafactor", "muon", "adamw8bit", "paged_adamw8bit", "lion8bit")


def trials() -> list[Trial]:
    """Whole models of the catalogue, as far as they are small."""
    entries = [
        found for found in catalogue.entries() if found.architecture().parameter_count < MOST_PARAMETERS
    ]
    return drawn("random", _JOBS, lambda rng: _draw(rng, entries))


def drawn(suite: str, jobs: int, draw: Callable[[random.Random], tuple[str, dict[str, Any]]]) -> list[Trial]:
    """The first draws that are jobs, by their numbers; ``draw`` answers a model's name and a job's fields.

    What a lever refuses, the tape does not replay or is too large is passed over. Memory alone is asked for, so
    that many run beside each other with ``--overlap``.
    """
    found: list[Trial] = []
    for number in count():
        if len(found) == jobs:
            break
        name, levers = draw(random.Random(number))
        try:
            job = TrainingJob(**levers)
            answer = estimate(job, "tape", "fast")
        except ValueError:
            continue
        if answer.engine == "tape" and answer.peak_allocated_bytes <= _MOST_BYTES:
            found.append(Trial(suite=suite, label=f"draw {number}, {name}", job=job, passes=("memory",)))
    return found


def _draw(rng: random.Random, entries: list[Any]) -> tuple[str, dict[str, Any]]:
    entry = rng.choice(entries)
    precision = rng.choice(PRECISIONS)
    levers: dict[str, Any] = {
        "model": entry.name,
        "task": entry.task,
        "micro_batch": rng.choice((1, 1, 2, 3, 4, 6)),
        "sequence_length": rng.choice((256, 512, 777, 1024, 1531, 2048, 3000)),
        "accumulation": rng.choice((1, 1, 1, 2, 3)),
        "precision": precision,
        "optimizer": rng.choice(ROUNDED if precision in ("bf16_kahan", "bf16_stochastic") else OPTIMIZERS),
        "attention": rng.choice(("sdpa", "sdpa", "eager")),
        "checkpointing": rng.choice(("none", "none", "full", "selective", "sqrt")),
        "zero_grad": "zeros" if rng.random() < 0.1 else "none",
    }
    if rng.random() < 0.35:
        levers["lora"] = Lora(rank=rng.choice((4, 8, 16, 64)))
        levers["base_quantization"] = rng.choice(("none", "nf4", "int8"))
    return entry.name, levers
