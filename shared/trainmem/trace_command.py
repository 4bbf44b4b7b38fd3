"""The command that replays a job on the real model, for the jobs that only it answers exactly."""

from __future__ import annotations

from trainmem.flags import CONFIG_FILE, job_command
from trainmem.job import TrainingJob

__all__ = ["trace_command", "untraceable"]


def untraceable(job: TrainingJob) -> str | None:
    """The first lever of ``job`` that the trace does not run, and what it does run; None where it runs all.

    Without this the model's own code would run on one device, as if the lever had not been set.
    """
    sharding = job.sharding
    if sharding.mode not in ("none", "ddp", "fsdp2"):
        return f"sharding.mode: {sharding.mode} is not torch's own; the trace replays fsdp2 and ddp"
    for name in ("tensor_parallel", "pipeline_parallel"):
        if getattr(sharding, name) > 1:
            return f"sharding.{name}: the trace replays data parallelism alone, fsdp2 and ddp"
    if sharding.offload == "nvme" or (sharding.offload == "cpu" and sharding.mode != "fsdp2"):
        return f"sharding.offload: the trace replays fsdp2's to the cpu, not {sharding.offload} with {sharding.mode}"
    return None


def trace_command(job: TrainingJob, config_file: str = CONFIG_FILE) -> str:
    """``trainmem trace`` with the flags that say ``job``, whose config is in ``config_file``."""
    return job_command("trace", job, config_file)
