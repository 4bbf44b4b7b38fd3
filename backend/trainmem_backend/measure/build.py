"""The step that a job describes, on the device of this process."""

from __future__ import annotations

from typing import Any

from trainmem.job import TrainingJob
from trainmem.results.flops import architecture_of_job
from trainmem_backend.measure.lean import build_lean
from trainmem_backend.measure.sharded import build_sharded
from trainmem_backend.workload import assemble, build_workload

__all__ = ["build", "unpacked_bytes"]


def unpacked_bytes(job: TrainingJob) -> int:
    """The model's weights in bf16, before any are packed."""
    return 2 * architecture_of_job(job).parameter_count


def build(job: TrainingJob, device: str, *, ranks: int = 1, room_bytes: int | None = None) -> Any:
    """Model, optimizer and batch, ready for the first step, and nothing of the building left in the
    cache.

    ``ranks`` above 1 means that this process is one of so many real ones; with 1 a sharded job runs as
    one rank of a group whose collectives do nothing. A quantised model whose unpacked weights take more
    than half of ``room_bytes`` is built block by block.
    """
    config = dict(job.config or {})
    if job.sharding.mode != "none":
        workload = build_sharded(job, device, real=ranks > 1)
    elif job.base_quantization != "none" and room_bytes is not None and 2 * unpacked_bytes(job) > room_bytes:
        workload = assemble(job, build_lean(job, config, device), device)
    else:
        workload = build_workload(job, config, device)
    return workload
