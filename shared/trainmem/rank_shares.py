"""What an allocation of the unsharded step takes on one rank: its bytes over the ranks that share its bucket."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainmem.buckets import BUCKETS
from trainmem.job import Sharding, TrainingJob
from trainmem.model import Architecture
from trainmem.whiteboard import Whiteboard, whiteboard
from trainmem.whiteboard.sharding import offload_leaves_device, offload_takes_parameters, shares

__all__ = ["RankSizes", "Share", "bucket_shares"]


@dataclass(frozen=True, slots=True)
class Share:
    """What becomes of an allocation: ``times`` its size over the ``ranks`` that share it; nothing over 0."""

    ranks: float
    times: int = 1

    def of(self, size_bytes: int) -> int:
        """Bytes on the rank."""
        return -int(-size_bytes * self.times // self.ranks) if self.ranks else 0


def bucket_shares(job: TrainingJob, architecture: Architecture, rank: Whiteboard, times: int) -> list[Share]:
    """The share of every bucket. ``rank`` is the whiteboard of ``job``; ``times``: how much wider the rank holds what
    the recorded step computes in."""
    over, away = shares(job.sharding), offload_leaves_device(job)
    plain = whiteboard(replace(job, sharding=Sharding()), architecture)
    trained = 1 if job.lora is not None else times
    all_away = offload_takes_parameters(job)
    state = Share(0 if away else over.optimizer, trained)
    known = {
        "weights": Share(0 if all_away else over.weights, times),
        "gradients": Share(0 if all_away else over.gradients, trained),
        "master_weights": state,
        "optimizer_state": state,
    }
    for bucket in ("activations", "logits"):
        if rank.buckets[bucket]:
            known[bucket] = Share(plain.buckets[bucket] / rank.buckets[bucket])
    return [known.get(bucket, Share(1)) for bucket in BUCKETS]


class RankSizes(dict[tuple[int, int], int]):
    """Bytes on the rank by bucket and bytes asked for, each pair worked out when it is first met."""

    __slots__ = ("shares",)

    def __init__(self, shares: Sequence[Share], **others: Share) -> None:
        super().__init__()
        self.shares = [others.get(bucket, share) for bucket, share in zip(BUCKETS, shares, strict=True)]

    def __missing__(self, asked: tuple[int, int]) -> int:
        bucket, size_bytes = asked
        found = self[asked] = self.shares[bucket].of(size_bytes)
        return found
