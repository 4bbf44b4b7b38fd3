"""How much arithmetic a training step cannot do without: the floor under its time."""

from __future__ import annotations

from functools import lru_cache

from trainmem.job import TrainingJob
from trainmem.model import Architecture, architecture_of
from trainmem.model.catalogue import find

__all__ = ["architecture_of_job", "step_flops"]


def architecture_of_job(job: TrainingJob) -> Architecture:
    """The architecture that the job's config, else its name, describes. Raises `JobError`."""
    config = job.config if job.config is not None else find(job.model or "").config
    return architecture_of(config, job.task)


def step_flops(job: TrainingJob, architecture: Architecture | None = None) -> int:
    """Least floating-point operations of one optimizer step on one rank.

    Equation: tokens x (2 M + 2 M + 2 T) + attention, with M the matrix parameters that a token meets and T
    the trainable ones among them: one multiply-add in the forward pass, one for the gradient of the input,
    one for the gradient of the weight. Full training is the familiar 6 M; frozen weights cost 4 M.
    Attention adds 2 x 2 x s/2 x heads x head_dim x layers forward for a causal model (half of the scores is
    masked) and twice that backward. Units: FLOP, a multiply-add counting two. Source: Kaplan et al. 2020,
    section 2.1; PaLM (Chowdhery et al. 2022), appendix B. Leaves out: embeddings' lookups, norms, softmax,
    the optimizer, recomputation under checkpointing; so it is a floor. Sliding windows make attention
    cheaper still: its term is left out where a model has one.
    """
    model = architecture or architecture_of_job(job)
    matrices = _matrix_parameters(model)
    if job.task == "causal_lm":
        matrices += model.vocab_size * model.hidden_size
    trained = 0.0 if job.lora is not None else matrices
    tokens = job.micro_batch * job.sequence_length * job.accumulation
    flops = tokens * (4 * matrices + 2 * trained)
    if not model.extra.get("sliding_window"):
        causal = 1 if model.extra.get("encoder") else 2
        scores = 4 * job.sequence_length / causal * model.heads * model.head_dim
        flops += 3 * tokens * scores * model.layers
    sharding = job.sharding
    return round(flops / (sharding.tensor_parallel * sharding.pipeline_parallel))


@lru_cache(maxsize=512)
def _matrix_parameters(model: Architecture) -> float:
    """Those that a token meets, without the head's: of the experts' its share."""
    experts = model.extra.get("experts")
    per_token = model.extra.get("experts_per_token")
    share = int(per_token) / int(experts) if experts and per_token else 1.0
    matrices = 0.0
    for _, parameter in model.parameters():
        if parameter.kind == "linear":
            matrices += parameter.numel
        elif parameter.kind == "expert" and len(parameter.shape) >= 3:
            matrices += parameter.numel * share
    return matrices
