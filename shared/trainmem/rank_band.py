"""How far off one rank's figures may be that were put together from the unsharded step."""

from __future__ import annotations

from dataclasses import replace

from trainmem.job import TrainingJob
from trainmem.results import Band, band
from trainmem.trace_command import untraceable

__all__ = ["rank_band"]

_RANKS = 83
_LEAST_ERROR, _MOST_ERROR = -0.10, 0.12
_MOST_ERROR_OF_TENSORS = 0.02


def rank_band(allocated_bytes: int, held_bytes: int, job: TrainingJob) -> Band:
    """How little and how much memory a rank may run in, where `record_rank` puts its tensors and what is held so.

    The errors are the worst of reserved memory on 24 measured ranks of FSDP2 and on 59 random ones of FSDP2 and DDP
    that were traced, rounded outwards. The least is that of the tensors, as the allocator gives idle memory back where
    it must; they were 0.6% too low to 0.2% too high. What nobody can trace, as
    DeepSpeed's ZeRO, tensor and pipeline parallelism, gets the whiteboard's errors, as it rests on the same sums.
    """
    least = int(allocated_bytes / (1 + _MOST_ERROR_OF_TENSORS))
    if untraceable(job) is not None:
        found = band(held_bytes, job)
        return replace(found, low_bytes=min(least, found.low_bytes))
    return Band(
        low_bytes=least,
        high_bytes=-int(-held_bytes // (1 + _LEAST_ERROR)),
        least_error=_LEAST_ERROR,
        most_error=_MOST_ERROR,
        rows=_RANKS,
        of="measured and traced ranks of FSDP2 and DDP",
    )
