"""LoRA and QLoRA, with and without checkpointing, by rank and by what is adapted."""

from __future__ import annotations

from typing import Any

from trainmem.job import Lora, TrainingJob
from trainmem_backend.measure.trial import Trial

__all__ = ["trials"]

_SMALL = TrainingJob(
    model="llama3.2-1b", micro_batch=4, sequence_length=2048, precision="bf16", lora=Lora(rank=16)
)
_LARGE = _SMALL.with_(model="llama3.1-8b", micro_batch=1)


def _trial(label: str, job: TrainingJob, **changes: Any) -> Trial:
    job = job.with_(**changes)
    return Trial(suite="adapters", label=label, job=job, passes=("memory", "hooks", "timing"))


def trials() -> list[Trial]:
    """Two sizes of Llama; full fine-tuning of the smaller one beside them."""
    return [
        _trial("1B, full fine-tuning", _SMALL, lora=None),
        _trial("1B, LoRA", _SMALL),
        _trial("1B, LoRA, checkpointing", _SMALL, checkpointing="full"),
        _trial("1B, LoRA of q and v", _SMALL, lora=Lora(rank=16, targets=("q_proj", "v_proj"))),
        _trial("1B, LoRA, rank 64", _SMALL, lora=Lora(rank=64)),
        _trial("1B, LoRA in AMP", _SMALL, precision="amp_bf16"),
        _trial("1B, QLoRA", _SMALL, base_quantization="nf4"),
        _trial("1B, QLoRA, checkpointing", _SMALL, base_quantization="nf4", checkpointing="full"),
        _trial("1B, LoRA on int8", _SMALL, base_quantization="int8"),
        _trial("8B, LoRA", _LARGE),
        _trial("8B, LoRA, checkpointing", _LARGE, checkpointing="full"),
        _trial("8B, QLoRA, checkpointing", _LARGE, base_quantization="nf4", checkpointing="full"),
        _trial(
            "8B, QLoRA, checkpointing, paged AdamW 8-bit",
            _LARGE,
            base_quantization="nf4",
            checkpointing="full",
            optimizer="paged_adamw8bit",
        ),
    ]
