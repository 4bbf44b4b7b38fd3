"""One lever at a time: optimizers, precisions, attention, loss, and the same step in every family."""

from __future__ import annotations

from typing import Any

from trainmem.job import LEVERS, TrainingJob
from trainmem_backend.measure.trial import Trial

__all__ = ["trials"]

_GPT2 = TrainingJob(model="gpt2-355m", micro_batch=4, sequence_length=1024)
_LLAMA = TrainingJob(model="llama3.2-1b", micro_batch=4, sequence_length=1024)

_FAMILIES = (
    ("pythia-410m", 4, 1024),
    ("opt-350m", 4, 1024),
    ("mistral-7b", 1, 1024),
    ("qwen2.5-0.5b", 4, 1024),
    ("qwen3-0.6b", 4, 1024),
    ("gemma2-2b", 1, 1024),
    ("gemma3-1b", 2, 1024),
    ("phi3-mini", 1, 1024),
    ("olmo2-1b", 2, 1024),
    ("smollm2-360m", 4, 1024),
)


def _trial(label: str, job: TrainingJob, **changes: Any) -> Trial:
    job = job.with_(**changes)
    return Trial(suite="levers", label=label, job=job, passes=("memory", "hooks", "timing"))


def trials() -> list[Trial]:
    """The sharded precision is left to its own suite."""
    found = [_trial(f"GPT-2 355M, {name}", _GPT2, optimizer=name) for name in LEVERS["optimizer"]]
    found += [
        _trial(f"Llama 3.2 1B, {name}", _LLAMA, precision=name)
        for name in LEVERS["precision"]
        if name != "fsdp_mp_bf16"
    ]
    found += [
        _trial("Llama 3.2 1B, eager", _LLAMA, attention="eager"),
        _trial("Llama 3.2 1B, checkpointing", _LLAMA, checkpointing="full"),
        _trial("Llama 3.2 1B, selective checkpointing", _LLAMA, checkpointing="selective"),
        _trial("Llama 3.2 1B, checkpointing every √L blocks", _LLAMA, checkpointing="sqrt"),
        _trial("Llama 3.2 1B, fused loss", _LLAMA, loss="liger_fused"),
        _trial("Llama 3.2 1B, gradients kept as zeros", _LLAMA, zero_grad="zeros"),
        _trial("Llama 3.2 1B, accumulation 4 x 1", _LLAMA, micro_batch=1, accumulation=4),
    ]
    for name, batch, length in _FAMILIES:
        job = TrainingJob(model=name, micro_batch=batch, sequence_length=length, optimizer="adamw")
        if name == "mistral-7b":
            job = job.with_(precision="bf16", checkpointing="full")
        found.append(_trial(name, job))
    for name in ("bert-base", "modernbert-base"):
        job = TrainingJob(model=name, task="sequence_classification", micro_batch=16, sequence_length=512)
        found.append(_trial(name, job))
    return found
