"""ZeRO, FSDP2 and DDP: by how much each part of the state is divided, and what the collectives need."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trainmem.device import device
from trainmem.job import ACTIVATION_DTYPE_BYTES, Sharding, ShardingMode, TrainingJob
from trainmem.model.architecture import Architecture
from trainmem.whiteboard.term import Term, share_term

__all__ = [
    "Shares",
    "communication_terms",
    "gathered_parameters",
    "offload_leaves_device",
    "offload_takes_parameters",
    "shares",
    "zero_bytes_per_parameter",
]

_ZERO_BUCKET_ELEMENTS = 500_000_000
"""DeepSpeed's default ``reduce_bucket_size``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """By how many ranks each part of the state is divided."""

    weights: int
    gradients: int
    optimizer: int


def shares(sharding: Sharding) -> Shares:
    """The divisors for one rank.

    Equation: ZeRO 1 divides optimizer state and master weights by N, ZeRO 2 the gradients too, ZeRO 3 and
    FSDP2 the weights too; tensor and pipeline parallelism divide everything by t p.
    Source: Rajbhandari et al. 2020, section 5. Known error: t p is even only when layers and heads are.
    """
    stage = {"none": 0, "ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp2": 3}[sharding.mode]
    n, model = sharding.data_parallel, sharding.tensor_parallel * sharding.pipeline_parallel
    return Shares(
        weights=model * (n if stage >= 3 else 1),
        gradients=model * (n if stage >= 2 else 1),
        optimizer=model * (n if stage >= 1 else 1),
    )


def offload_leaves_device(job: TrainingJob) -> bool:
    """Whether optimizer state and master weights are out of the device's memory.

    Where CPU and GPU share one memory (DGX Spark), offloading to the CPU moves nothing.
    """
    offload = job.sharding.offload
    return offload == "nvme" or (offload == "cpu" and not device(job.device).integrated)


def offload_takes_parameters(job: TrainingJob) -> bool:
    """Whether shards of parameters and gradients leave the device too, as under FSDP2's ``CPUOffloadPolicy``."""
    return job.sharding.mode == "fsdp2" and offload_leaves_device(job)


def zero_bytes_per_parameter(
    mode: ShardingMode, ranks: int, *, weights: float = 2, gradients: float = 2, optimizer: float = 12
) -> float:
    """Bytes of state a parameter on each of ``ranks`` data parallel ranks.

    Equation: 2 + 2 + 12, each part over N once its stage shards it.
    Source: Rajbhandari et al. 2020, figure 1: 7.5B on 64 GPUs takes 120 / 31.4 / 16.6 / 1.9 GB.
    Leaves out: activations, which no stage of ZeRO divides, and the collectives' buffers.
    """
    divisors = shares(Sharding(mode=mode, data_parallel=ranks))
    return weights / divisors.weights + gradients / divisors.gradients + optimizer / divisors.optimizer


def gathered_parameters(architecture: Architecture, sharding: Sharding) -> int:
    """Parameters that lie whole on a rank at once under ZeRO 3 and FSDP2.

    Equation: embeddings, last norm and head (FSDP2's root group, kept through the step) + the block at work
    and the one fetched ahead; without resharding after the forward, the whole model.
    Source: torch/distributed/fsdp/_fully_shard. Leaves out: the reduce-scatter's input. Assumed: prefetch
    of one.
    """
    if not sharding.reshard_after_forward and sharding.mode == "fsdp2":
        return architecture.parameter_count
    per_kind = {kind: sum(p.numel for p in block) for kind, block in architecture.blocks.items()}
    in_blocks = sum(per_kind[kind] for kind in architecture.layer_kinds)
    ahead = min(2, architecture.layers) * max(per_kind.values(), default=0)
    return architecture.parameter_count - in_blocks + ahead


def communication_terms(
    job: TrainingJob, architecture: Architecture, trainable: int, gradient_bytes: int
) -> Iterator[Term]:
    """What the collectives of one rank hold beside the shards.

    Equations: DDP, a second copy of every gradient in its buckets (``gradient_as_bucket_view=False``); ZeRO 1
    and 2, one reduce bucket; ZeRO 3 and FSDP2, the gathered parameters in the dtype they are gathered in.
    Sources: torch/nn/parallel/distributed.py, DeepSpeed's defaults, torch/distributed/fsdp/_fully_shard.
    Leaves out: NCCL's own buffers, outside the allocator.
    """
    sharding, model = job.sharding, job.sharding.tensor_parallel * job.sharding.pipeline_parallel
    if sharding.mode == "ddp":
        yield share_term(
            "communication",
            "DDP's gradient buckets",
            f"P × {gradient_bytes} B",
            f"{trainable:,} × {gradient_bytes} B",
            trainable * gradient_bytes,
            model,
            "exact",
            "torch/nn/parallel/distributed.py",
        )
    elif sharding.mode in ("zero1", "zero2"):
        elements = min(trainable, _ZERO_BUCKET_ELEMENTS)
        yield share_term(
            "communication",
            "one reduce bucket",
            f"min(P, 500 million) × {gradient_bytes} B",
            f"{elements:,} × {gradient_bytes} B",
            elements * gradient_bytes,
            model,
            "assumed",
            "DeepSpeed's reduce_bucket_size",
        )
    elif sharding.mode in ("zero3", "fsdp2"):
        elements = gathered_parameters(architecture, sharding)
        size = 4 if job.precision.startswith("amp") else ACTIVATION_DTYPE_BYTES[job.precision]
        yield share_term(
            "communication",
            "gathered weights",
            f"gathered parameters × {size} B",
            f"{elements:,} × {size} B",
            elements * size,
            model,
            "approximate",
            "torch/distributed/fsdp/_fully_shard",
        )
