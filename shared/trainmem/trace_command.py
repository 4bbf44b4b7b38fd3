"""The command that replays a job on the real model, for the jobs that only it answers exactly."""

from __future__ import annotations

import shlex

from trainmem.hub import is_hub_id
from trainmem.job import LEVERS, TrainingJob

__all__ = ["trace_command", "untraceable"]

_CONFIG_FILE = "config.json"
"""What stands in the command for a config that came without a path."""

_FLAGS = {"micro_batch": "-b", "sequence_length": "-s"}


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


def trace_command(job: TrainingJob, config_file: str = _CONFIG_FILE) -> str:
    """``trainmem trace`` with the flags that say ``job``, whose config is in ``config_file``."""
    plain = TrainingJob(model="any")
    # a config that came with a Hub id was fetched by it, and is fetched again
    named = job.model is not None and (job.config is None or is_hub_id(job.model))
    words = ["trainmem", "trace", "--model", str(job.model) if named else config_file]
    for name in ("micro_batch", "sequence_length", "accumulation", *LEVERS, "device"):
        value = getattr(job, name)
        if value != getattr(plain, name):
            words += [_FLAGS.get(name, f"--{name.replace('_', '-')}"), str(value)]
    if job.lora is not None:
        words += ["--lora-rank", str(job.lora.rank)]
        if not isinstance(job.lora.targets, str):
            words += ["--lora-targets", ",".join(job.lora.targets)]
    sharding = job.sharding
    if sharding.mode != "none":
        words += ["--sharding", sharding.mode]
    for name in ("data_parallel", "tensor_parallel", "pipeline_parallel"):
        if getattr(sharding, name) != 1:
            words += [f"--{name.replace('_', '-')}", str(getattr(sharding, name))]
    if not sharding.reshard_after_forward:
        words.append("--no-reshard-after-forward")
    if sharding.offload != "none":
        words += ["--offload", sharding.offload]
    return shlex.join(words)
