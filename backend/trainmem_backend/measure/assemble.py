"""A workload around a model that was not built in the usual way."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch

from trainmem.job import TrainingJob
from trainmem_backend.workload import Workload, build_optimizer

__all__ = ["assemble"]


def assemble(job: TrainingJob, model: Any, device: str) -> Workload:
    """Optimizer, random tokens and autocast as the job says, for a language model without master weights."""
    vocabulary = int(model.config.get_text_config().vocab_size)
    ids = torch.randint(0, vocabulary, (job.micro_batch, job.sequence_length), device=device)
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
    if job.precision == "amp_bf16":
        autocast = partial(torch.autocast, device, dtype=torch.bfloat16)
    return Workload(
        job=job,
        model=model,
        optimizer=build_optimizer(job, model.parameters()),
        batch={"input_ids": ids, "labels": ids},
        autocast=autocast,
    )
