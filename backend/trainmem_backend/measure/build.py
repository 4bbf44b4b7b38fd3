"""The step that a job describes, on the device of this process."""

from __future__ import annotations

from trainmem.job import TrainingJob
from trainmem_backend.measure.sharded import build_sharded
from trainmem_backend.workload import Workload, build_workload

__all__ = ["build"]


def build(job: TrainingJob, device: str, *, ranks: int = 1, room_bytes: int | None = None) -> Workload:
    """Model, optimizer and batch, ready for the first step, and nothing of the building left in the
    cache.

    ``ranks`` above 1 means that this process is one of so many real ones; with 1 a sharded job runs as
    one rank of a group whose collectives do nothing. A quantised model too large for ``room_bytes`` before
    it is packed is built block by block.
    """
    if job.sharding.mode != "none" or job.precision == "fsdp_mp_bf16":
        return build_sharded(job, device, real=ranks > 1)
    return build_workload(job, device=device, room_bytes=room_bytes)
