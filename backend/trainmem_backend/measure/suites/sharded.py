"""One rank of FSDP2 among 2, 8 and 64, measured on one GPU; the same among real ranks where there are
several."""

from __future__ import annotations

from typing import Any

from trainmem.job import Sharding, TrainingJob
from trainmem_backend.measure.trial import Trial

__all__ = ["real_trials", "trials"]

_MODEL = TrainingJob(model="llama3.2-1b", micro_batch=2, sequence_length=2048, precision="fsdp_mp_bf16")


def _job(ranks: int, *, reshard: bool = True, **changes: Any) -> TrainingJob:
    sharding = Sharding(mode="fsdp2", data_parallel=ranks, reshard_after_forward=reshard)
    return _MODEL.with_(sharding=sharding, **changes)


def trials() -> list[Trial]:
    """The group's collectives do nothing, so there are no times."""
    found = []
    for ranks in (2, 8, 64):
        found += [
            _trial(f"N = {ranks}", _job(ranks)),
            _trial(f"N = {ranks}, whole after forward", _job(ranks, reshard=False)),
            _trial(f"N = {ranks}, checkpointing", _job(ranks, checkpointing="full")),
        ]
    return found


def real_trials(gpus: int) -> list[Trial]:
    """The jobs of `trials` that ``gpus`` real ranks can run."""
    found = [
        (f"{gpus} real ranks", _job(gpus)),
        (f"{gpus} real ranks, whole after forward", _job(gpus, reshard=False)),
        (f"{gpus} real ranks, checkpointing", _job(gpus, checkpointing="full")),
    ]
    return [_trial(label, job).with_(ranks=gpus, passes=("memory", "timing")) for label, job in found]


def _trial(label: str, job: TrainingJob) -> Trial:
    return Trial(suite="sharded", label=label, job=job, passes=("memory",))
