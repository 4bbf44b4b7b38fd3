"""Chains for the mock interview: questions that go deeper into one case."""

from __future__ import annotations

import random
from dataclasses import dataclass

from trainmem.job import TrainingJob

__all__ = ["CHAINS", "Chain"]


@dataclass(frozen=True, slots=True)
class Chain:
    """One case and the templates that deepen it, in order; ``jobs`` are the cases to draw from."""

    name: str
    title: str
    jobs: tuple[TrainingJob, ...]
    templates: tuple[str, ...]

    def job(self, seed: int) -> TrainingJob:
        """The case of this seed."""
        return random.Random(f"{self.name}~{seed}").choice(self.jobs)


def _jobs(*models: str, **levers: object) -> tuple[TrainingJob, ...]:
    return tuple(TrainingJob.from_json({"model": model, **levers}) for model in models)


CHAINS: tuple[Chain, ...] = (
    Chain(
        "one-gpu",
        "A small model on one GPU",
        _jobs("gpt2-355m", "gpt2-774m", "gpt2-1558m", micro_batch=8),
        (
            "states.per-parameter",
            "states.total",
            "activations.all-blocks",
            "activations.logits",
            "levers.checkpointing",
            "levers.combined",
            "spoken.halve-it",
        ),
    ),
    Chain(
        "second-step",
        "The first step passes, the second dies",
        _jobs("gpt2-355m", "gpt2-774m", "gpt2-1558m", micro_batch=8),
        (
            "steps.second-dies",
            "steps.rise",
            "timelines.dies-when",
            "steps.set-to-none",
            "levers.share-of-total",
            "spoken.second-step",
        ),
    ),
    Chain(
        "cluster",
        "A larger model on many GPUs",
        _jobs("llama2-7b", "llama3.1-8b", "llama2-13b", precision="bf16_master", checkpointing="full"),
        (
            "states.master-weights",
            "sharding.what",
            "sharding.per-gpu",
            "sharding.stage-difference",
            "sharding.gathered",
            "sharding.limit",
            "spoken.zero",
        ),
    ),
    Chain(
        "adapters",
        "Adapters on one machine",
        _jobs("llama3.1-8b", "llama2-7b", precision="bf16", micro_batch=4, sequence_length=2048),
        (
            "adapters.one-layer",
            "adapters.model",
            "adapters.base",
            "adapters.nf4",
            "adapters.activations",
            "sharding.offload-on-spark",
            "spoken.lora-or-full",
        ),
    ),
    Chain(
        "long-sequences",
        "Longer sequences",
        _jobs("gpt2-355m", "gpt2-774m", micro_batch=2, sequence_length=1024),
        (
            "activations.block",
            "activations.crossover",
            "activations.scores",
            "activations.longer",
            "levers.fused-attention",
            "spoken.checkpointing",
        ),
    ),
    Chain(
        "where-is-the-peak",
        "Where the peak is",
        _jobs("llama2-7b", "llama3.1-8b", precision="bf16", checkpointing="full", micro_batch=2),
        (
            "states.pure-bf16",
            "levers.checkpointing-saves",
            "levers.which-moment",
            "levers.fused-step",
            "timelines.act",
        ),
    ),
)
