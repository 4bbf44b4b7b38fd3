"""One rank of a sharded job: on one GPU with a process group whose collectives do nothing, or among real
ranks.

The group of torch's "fake" backend answers every collective at once: an all-gather copies the local
shard into every slot, a reduce-scatter takes its own chunk. Every buffer that a real rank would hold is
allocated for real. What NCCL itself takes outside the allocator is missing.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

from trainmem.job import TrainingJob
from trainmem_backend.workload import Workload, assemble, build_model
from trainmem_backend.workload.checkpointing import blocks_of
from trainmem_backend.workload.model import model_config

__all__ = ["build_sharded", "join_group"]


def join_group(job: TrainingJob, device: str, *, real: bool) -> None:
    """Make this process a rank of the job's data-parallel group."""
    import torch.distributed as dist

    if dist.is_initialized():
        return
    if real:
        if device == "cuda":
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group("nccl" if device == "cuda" else "gloo")
        return
    if job.sharding.mode == "ddp":
        from torch._C._distributed_c10d import HashStore

        # DDP's hook gets no future from the fake backend; a real group of one rank shows its buckets.
        store = HashStore()
        dist.init_process_group("nccl" if device == "cuda" else "gloo", store=store, rank=0, world_size=1)
        return
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=job.sharding.data_parallel)


def build_sharded(job: TrainingJob, device: str, *, real: bool) -> Workload:
    """The workload of one rank, its model built whole and then sharded, block by block and the root.

    FSDP's mixed precision without a mode of sharding is FSDP2 over a single rank.

    Raises `ValueError` for what torch alone cannot shard.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

    sharding = job.sharding
    if sharding.mode not in ("none", "fsdp2", "ddp"):
        raise ValueError(f"sharding.mode: {sharding.mode} is DeepSpeed's; fsdp2 and ddp are measured")
    join_group(job, device, real=real)
    model: Any = build_model(job, model_config(job), device)
    if sharding.mode == "ddp":
        wrapped = nn.parallel.DistributedDataParallel(model)
        wrapped.config = model.config
        model = wrapped
    else:
        policy = (
            MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
            if job.precision == "fsdp_mp_bf16"
            else MixedPrecisionPolicy()
        )
        offload = CPUOffloadPolicy() if sharding.offload == "cpu" else OffloadPolicy()
        mesh = init_device_mesh(device, (sharding.data_parallel,))
        for module in [*blocks_of(model, "sharding.mode"), model]:
            fully_shard(
                module,
                mesh=mesh,
                mp_policy=policy,
                offload_policy=offload,
                reshard_after_forward=sharding.reshard_after_forward,
            )
    return assemble(job, model, device)
