"""A job as the flags of the command line that say it, and one change of a job as the flags that make it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from trainmem.hub import is_hub_id
from trainmem.job import LEVERS, TrainingJob

__all__ = ["CONFIG_FILE", "changed_flags", "job_command"]

CONFIG_FILE = "config.json"
"""What stands in a command for a config that came without a path."""

_SHORT = {"micro_batch": "-b", "sequence_length": "-s"}


def job_command(command: str, job: TrainingJob, config_file: str = CONFIG_FILE) -> str:
    """``trainmem COMMAND`` with the flags that say ``job`` where it is no default; its config is in ``config_file``."""
    plain = TrainingJob(model="any")
    # a config that came with a Hub id was fetched by it, and is fetched again
    named = job.model is not None and (job.config is None or is_hub_id(job.model))
    words = ["trainmem", command, "--model", str(job.model) if named else config_file]
    return shlex.join([*words, *_differing(plain, job)])


def changed_flags(before: TrainingJob, after: TrainingJob) -> str:
    """The flags that turn ``before`` into ``after``: ``"--precision bf16 --lora-rank 16"``."""
    return shlex.join(_differing(before, after))


def _differing(before: TrainingJob, after: TrainingJob) -> Iterator[str]:
    for name in ("micro_batch", "sequence_length", "accumulation", *LEVERS, "device"):
        if getattr(after, name) != getattr(before, name):
            yield from (_SHORT.get(name, _flag(name)), str(getattr(after, name)))
    lora, old = after.lora, before.lora
    if lora is not None and (old is None or lora.rank != old.rank):
        yield from ("--lora-rank", str(lora.rank))
    if lora is not None and lora.targets != (old.targets if old else "all-linear"):
        yield from (
            "--lora-targets",
            lora.targets if isinstance(lora.targets, str) else ",".join(lora.targets),
        )
    sharding, other = after.sharding, before.sharding
    if sharding.mode != other.mode:
        yield from ("--sharding", sharding.mode)
    for name in ("data_parallel", "tensor_parallel", "pipeline_parallel"):
        if getattr(sharding, name) != getattr(other, name):
            yield from (_flag(name), str(getattr(sharding, name)))
    if not sharding.reshard_after_forward and other.reshard_after_forward:
        yield "--no-reshard-after-forward"
    if sharding.offload != other.offload:
        yield from ("--offload", sharding.offload)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
