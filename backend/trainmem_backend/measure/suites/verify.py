"""Does the prediction hold on this GPU? Eight jobs in about two minutes, each of another kind."""

from __future__ import annotations

from trainmem.job import Lora, TrainingJob
from trainmem_backend.measure.trial import Trial

__all__ = ["trials"]


def _trial(label: str, job: TrainingJob) -> Trial:
    return Trial(suite="verify", label=label, job=job, passes=("memory",))


def trials() -> list[Trial]:
    """Small enough for a GPU of 12 GB, large enough that the model and not the workspace is what is seen."""
    gpt2 = TrainingJob(model="gpt2-124m", micro_batch=4, sequence_length=1024)
    llama = TrainingJob(model="smollm2-360m", micro_batch=2, sequence_length=1024)
    return [
        _trial("GPT-2 124M, AMP", gpt2),
        _trial("GPT-2 124M, checkpointing", gpt2.with_(checkpointing="full")),
        _trial("GPT-2 124M, pure bf16", gpt2.with_(precision="bf16")),
        _trial("GPT-2 124M, fp32, eager", gpt2.with_(precision="fp32", attention="eager", micro_batch=1)),
        _trial("GPT-2 124M, accumulation", gpt2.with_(micro_batch=1, accumulation=4)),
        _trial("SmolLM2 360M, AMP", llama),
        _trial("SmolLM2 360M, fused AdamW", llama.with_(optimizer="adamw_fused", precision="bf16")),
        _trial("SmolLM2 360M, LoRA", llama.with_(precision="bf16", lora=Lora(rank=16))),
    ]
