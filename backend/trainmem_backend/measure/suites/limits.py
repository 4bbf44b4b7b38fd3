"""The largest models behind "what fits": full fine-tuning by recipe, LoRA, QLoRA.

Everything is built from its config with random weights, so that nothing is downloaded. What is predicted
over the machine's capacity is skipped with the reason, which is an answer too.
"""

from __future__ import annotations

from typing import Any

from trainmem.job import Lora, TrainingJob
from trainmem_backend.measure.trial import Trial

__all__ = ["RECIPES", "trials"]

RECIPES: dict[str, dict[str, Any]] = {
    "AMP, AdamW": {"precision": "amp_bf16", "optimizer": "adamw"},
    "AMP, AdamW 8-bit": {"precision": "amp_bf16", "optimizer": "adamw8bit"},
    "pure bf16, AdamW": {"precision": "bf16", "optimizer": "adamw"},
    "pure bf16, AdamW 8-bit": {"precision": "bf16", "optimizer": "adamw8bit"},
}
_FULL = {"7B": "llama2-7b", "8B": "llama3.1-8b", "13B": "llama2-13b"}
_LORA = {"32B": "qwen2.5-32b", "Mixtral 8x7B": "mixtral-8x7b"}


def _trial(label: str, model: str, *, forced: bool = False, **changes: Any) -> Trial:
    job = TrainingJob(model=model, micro_batch=1, sequence_length=2048, checkpointing="full", **changes)
    return Trial(suite="limits", label=label, job=job, passes=("memory",), forced=forced)


def trials() -> list[Trial]:
    """Micro batch 1, 2,048 tokens, checkpointing: the least that is still training."""
    found = [
        _trial(f"{size}, {recipe}", model, **levers)
        for size, model in _FULL.items()
        for recipe, levers in RECIPES.items()
    ]
    # Forced: shows what running out looks like where the prediction says so by a small margin.
    found.append(
        _trial("7B, AMP, AdamW, run although refused", "llama2-7b", forced=True, **RECIPES["AMP, AdamW"])
    )
    found += [
        _trial(f"{size}, LoRA", model, precision="bf16", lora=Lora(rank=16)) for size, model in _LORA.items()
    ]
    found.append(
        _trial("70B, QLoRA", "llama3.1-70b", precision="bf16", lora=Lora(rank=16), base_quantization="nf4")
    )
    return found
