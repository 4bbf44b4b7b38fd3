"""One rank of a sharded job: the tape's answer for the whole job, bucket by bucket over its ranks."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from trainmem.buckets import Bucket
from trainmem.estimate import Estimate, estimate
from trainmem.job import Sharding, TrainingJob
from trainmem.model import resolve
from trainmem.whiteboard import whiteboard
from trainmem.whiteboard.sharding import offload_leaves_device, shares

__all__ = ["estimate_rank"]

_STATE: tuple[Bucket, ...] = ("weights", "master_weights", "gradients", "optimizer_state")


@lru_cache(maxsize=1024)
def estimate_rank(job: TrainingJob) -> Estimate:
    """The peak of one rank, as the larger of two instants.

    Equations: in forward or backward, each bucket of the unsharded job's peak x (the whiteboard's bucket for
    one rank / the whiteboard's bucket unsharded), and the collectives' buffers; in the optimizer step, the
    state of one rank and the foreach temporary over the ranks that share the state.
    Sources: ZeRO (Rajbhandari et al. 2020, section 5) for the shares; `communication_terms` for the buffers.
    Leaves out: NCCL's own buffers, uneven shards, the allocator (reserved is None).
    Known error: against nine measured ranks of FSDP2, 0 to 1.6% too much.
    """
    whole_job = replace(job, sharding=Sharding())
    passes = estimate(replace(whole_job, optimizer="sgd"), "tape", "fast")
    whole = estimate(whole_job, "tape", "fast")
    architecture = resolve(job).architecture
    plain, rank = whiteboard(whole_job, architecture).buckets, whiteboard(job, architecture).buckets

    def part(found: Estimate, bucket: Bucket) -> int:
        size = found.buckets_at_peak[bucket]
        return round(size * rank[bucket] / plain[bucket]) if plain[bucket] else size

    buckets: dict[Bucket, int] = {bucket: part(passes, bucket) for bucket in passes.buckets_at_peak}
    buckets["optimizer_state"] = rank["optimizer_state"]
    buckets["communication"] = rank["communication"]
    phase, instant = passes.peak_phase, passes.peak_instant

    stepping: dict[Bucket, int] = dict.fromkeys(buckets, 0)
    stepping |= {bucket: rank[bucket] for bucket in _STATE}
    stepping["workspace"] = whole.buckets_at_peak["workspace"]
    if not offload_leaves_device(job):
        scratch = max(0, whole.phases["peak_optimizer_bytes"] - whole.phases["after_optimizer_bytes"])
        stepping["temporaries"] = scratch // shares(job.sharding).optimizer
    if job.sharding.mode == "ddp":
        # DDP's buckets are made once and stay; the others' buffers live through forward and backward alone.
        stepping["communication"] = rank["communication"]
    if sum(stepping.values()) > sum(buckets.values()):
        buckets, phase = stepping, "optimizer"
    if phase == "optimizer":
        instant = "optimizer step on this rank's shard"
    peak = sum(buckets.values())
    note = (
        "one rank: the unsharded step's buckets over the ranks that share them, and the collectives' buffers; "
        "without NCCL's own"
    )
    return replace(
        whole,
        job=job,
        peak_allocated_bytes=peak,
        peak_reserved_bytes=None,
        peak_phase=phase,
        peak_instant=instant,
        buckets_at_peak=buckets,
        phases={},
        first_step_peak_bytes=peak - buckets["optimizer_state"],
        warnings=(*whole.warnings, note),
    )
