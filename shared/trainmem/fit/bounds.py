"""What a job needs at the very least, in microseconds and before any replay."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from trainmem.fit.saved import is_replayed, kept_a_token, kept_casts
from trainmem.job import BaseQuantization, Lora, Optimizer, Precision, TrainingJob
from trainmem.model import Architecture, resolve
from trainmem.whiteboard.adapters import Shapes, frozen_base, trainable_shapes
from trainmem.whiteboard.optimizer_state import optimizer_state
from trainmem.whiteboard.sharding import offload_leaves_device, offload_takes_parameters, shares
from trainmem.whiteboard.states import RECIPES, recipe_of

__all__ = ["least_bytes"]


def least_bytes(job: TrainingJob, architecture: Architecture | None = None) -> int:
    """A bound from below on the peak of one rank: the larger of two instants.

    Equations: in the optimizer step, weights + master weights + gradients + optimizer state + AdamW's foreach
    temporary, with gradients in fp32 where master weights are updated; where the backward pass starts, weights +
    master weights + optimizer state + what all blocks keep until then (`trainmem.fit.saved`) + 12 B a logit (its
    log-probability, that one's gradient and its own, in fp32; 10 B in the whiteboard's sum). Units: bytes.
    ``architecture``: the job's, where it is known.
    Leaves out: everything else. Source: `trainmem.whiteboard`, `trainmem.tape`.
    """
    architecture = architecture or resolve(job).architecture
    recipe, over = recipe_of(job), shares(job.sharding)
    trained, weights, state = _held(
        architecture, job.lora, job.base_quantization, job.precision, job.optimizer, recipe.state_bytes
    )
    if offload_takes_parameters(job):
        return _saved_at_the_loss(job, architecture)
    wide = trained * (recipe.master_bytes or recipe.gradient_bytes) // over.gradients
    held = weights // over.weights
    stepping = 0
    if not offload_leaves_device(job):
        held += (state + trained * (recipe.master_bytes + recipe.compensation_bytes)) // over.optimizer
        # Kahan's and stochastic rounding's updates go tensor by tensor.
        if job.optimizer == "adamw" and job.precision not in ("bf16_kahan", "bf16_stochastic"):
            stepping = trained * recipe.state_bytes // over.optimizer
    return held + max(wide + stepping, _saved_at_the_loss(job, architecture))


def _saved_at_the_loss(job: TrainingJob, architecture: Architecture) -> int:
    sharding = job.sharding
    if sharding.tensor_parallel * sharding.pipeline_parallel > 1:
        return 0
    saved = kept_a_token(job, architecture)
    if job.task == "causal_lm" and job.loss == "standard":
        saved += (12 if is_replayed(job, architecture) else 10) * architecture.vocab_size
    return job.micro_batch * job.sequence_length * saved + kept_casts(job, architecture)


@lru_cache(maxsize=4096)
def _held(
    architecture: Architecture,
    lora: Lora | None,
    quantization: BaseQuantization,
    precision: Precision,
    optimizer: Optimizer,
    state_bytes: int,
) -> tuple[int, int, int]:
    """Trainable parameters; bytes of the weights that the model computes with; bytes of optimizer state."""
    shapes, trained = _trained(architecture, lora)
    state = optimizer_state(optimizer, shapes, state_bytes).device_bytes
    size = RECIPES[precision].weight_bytes
    if lora is None:
        return trained, trained * size, state
    base = frozen_base(architecture, quantization, size)
    adapters = trained * RECIPES["fp32"].weight_bytes
    return trained, base.packed_bytes + base.plain_bytes + adapters, state


@lru_cache(maxsize=1024)
def _trained(architecture: Architecture, lora: Lora | None) -> tuple[Shapes, int]:
    """Shapes of what trains, and how many parameters that is: the same for every optimizer and precision."""
    shapes = trainable_shapes(architecture, lora)
    return shapes, sum(copies * prod(shape) for shape, copies in shapes)
