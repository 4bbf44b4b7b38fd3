"""Bytes per parameter: weights, master weights, gradients, cast copies and what the optimizer keeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trainmem.job import Optimizer, Precision, TrainingJob
from trainmem.model.architecture import Architecture
from trainmem.whiteboard.adapters import base_terms, frozen_base, lora_parameters
from trainmem.whiteboard.sharding import offload_leaves_device, shares
from trainmem.whiteboard.term import Term, share_term

__all__ = ["RECIPES", "Recipe", "bytes_per_parameter", "recipe_of", "recipe_sum", "state_terms"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Bytes per trainable parameter under one precision, the optimizer's own state apart.

    ``state_bytes`` is one element of optimizer state: torch's optimizers make their state like the tensor
    that they update, so Adam keeps two of these.
    """

    weight_bytes: int
    master_bytes: int = 0
    gradient_bytes: int
    state_bytes: int
    cast_bytes: int = 0
    compensation_bytes: int = 0


RECIPES: dict[Precision, Recipe] = {
    "fp32": Recipe(weight_bytes=4, gradient_bytes=4, state_bytes=4),
    "amp_bf16": Recipe(weight_bytes=4, gradient_bytes=4, state_bytes=4, cast_bytes=2),
    "amp_fp16": Recipe(weight_bytes=4, gradient_bytes=4, state_bytes=4, cast_bytes=2),
    "bf16": Recipe(weight_bytes=2, gradient_bytes=2, state_bytes=2),
    "bf16_kahan": Recipe(weight_bytes=2, gradient_bytes=2, state_bytes=2, compensation_bytes=2),
    "bf16_stochastic": Recipe(weight_bytes=2, gradient_bytes=2, state_bytes=2),
    "bf16_master": Recipe(weight_bytes=2, master_bytes=4, gradient_bytes=2, state_bytes=4),
    "bf16_master_fp32_grads": Recipe(weight_bytes=2, master_bytes=4, gradient_bytes=4, state_bytes=4),
    "fsdp_mp_bf16": Recipe(weight_bytes=4, gradient_bytes=4, state_bytes=4),
}
"""What each precision keeps, with its source.

fp32 and AMP: torch.amp keeps parameters, gradients and state in fp32 and caches 16-bit copies of the weights
(autocast_mode.cpp). ``bf16_master``: Micikevicius et al. 2018, the classic 2 + 2 + 4 + 8. Pure bf16:
``zeros_like`` gives state the dtype of its parameter (torch/optim/adam.py). Kahan: Zamirai et al. 2020, one
16-bit compensation. Stochastic rounding needs no buffer.
"""

_STATES: dict[Optimizer, int] = {
    "adamw": 2,
    "adamw_fused": 2,
    "adamw_loop": 2,
    "sgd": 0,
    "sgd_momentum": 1,
    "muon": 1,
}
_STATES_8BIT: dict[Optimizer, float] = {
    "adamw8bit": 2 * (1 + 4 / 256),
    "paged_adamw8bit": 2 * (1 + 4 / 256),
    "lion8bit": 1 + 4 / 256,
}


def recipe_sum(precision: Precision, optimizer: Optimizer = "adamw") -> tuple[tuple[str, float], ...]:
    """The parts of the bytes per parameter, in the order people say them; parts of zero are left out.

    Large matrices are assumed: an 8-bit optimizer's small tensors and Muon's vectors cost more, and
    Adafactor's rows and columns, which vanish beside n x m, count as nothing.
    `trainmem.whiteboard.optimizer_state` counts all of these from real shapes.
    """
    recipe = RECIPES[precision]
    if optimizer == "adafactor":
        state: float = 0
    else:
        state = _STATES_8BIT.get(optimizer, _STATES.get(optimizer, 0) * recipe.state_bytes)
    parts: tuple[tuple[str, float], ...] = (
        ("weights", recipe.weight_bytes),
        ("master weights", recipe.master_bytes),
        ("gradients", recipe.gradient_bytes),
        ("optimizer state", state),
        ("compensation", recipe.compensation_bytes),
        ("cast cache", recipe.cast_bytes),
    )
    return tuple((name, size) for name, size in parts if size)


def bytes_per_parameter(precision: Precision, optimizer: Optimizer = "adamw") -> float:
    """Bytes that one trainable parameter costs before any activation.

    Equation: weights + master + gradients + optimizer state + compensation + cast cache.
    With AdamW: fp32 16, AMP 18, classic mixed precision 16, fp32 gradient buffers 18, pure bf16 8, Kahan 10.
    Source: ZeRO (Rajbhandari et al. 2020, section 3.1) for the classic 16; the rest as `RECIPES` says.
    Leaves out: activations, logits, buffers of collectives, the foreach optimizer's temporary.
    Known error: AMP casts only the weights of matrix products, so embeddings and norms make 18 a little high.
    """
    return sum(size for _, size in recipe_sum(precision, optimizer))


def recipe_of(job: TrainingJob) -> Recipe:
    """The recipe of the parameters that train.

    PEFT keeps adapters, their gradients and their state in fp32 over a base of any dtype
    (``autocast_adapter_dtype=True``), so a job with LoRA has fp32's.
    """
    return RECIPES[job.precision if job.lora is None else "fp32"]


def state_terms(job: TrainingJob, architecture: Architecture) -> Iterator[Term]:
    """Weights, master weights, gradients and cast cache of one rank; `optimizer_terms` has the rest.

    Known error: the cast cache is counted for every parameter as on the board, though autocast copies only
    the weights of matrix products: embeddings that are not tied to the head, and norms, stay as they are.
    """
    recipe, share = RECIPES[job.precision], shares(job.sharding)
    if job.lora is None:
        count = architecture.parameter_count
        size = recipe.weight_bytes
        yield share_term(
            "weights",
            "weights",
            f"P × {size} B",
            f"{count:,} × {size} B",
            count * size,
            share.weights,
            "exact",
            "parameter shapes",
        )
    else:
        count = lora_parameters(architecture, job.lora)
        yield from base_terms(job, architecture, recipe.weight_bytes, share.weights)
    trained = recipe_of(job)
    if trained.master_bytes and not offload_leaves_device(job):
        size = trained.master_bytes
        yield share_term(
            "master_weights",
            "fp32 master weights",
            f"P × {size} B",
            f"{count:,} × {size} B",
            count * size,
            share.optimizer,
            "exact",
            "Micikevicius et al. 2018",
        )
    size = trained.gradient_bytes
    name = "gradients" if job.accumulation == 1 else "gradients, kept between micro batches"
    yield share_term(
        "gradients",
        name,
        f"P × {size} B" if job.lora is None else f"adapters × {size} B",
        f"{count:,} × {size} B",
        count * size,
        share.gradients,
        "exact",
        "one gradient a parameter, in its dtype",
    )
    if recipe.cast_bytes:
        frozen = job.lora is not None
        # a packed weight is unpacked for its product and never saved
        casts = frozen_base(architecture, job.base_quantization, recipe.weight_bytes).plain_parameters
        size = recipe.cast_bytes
        yield share_term(
            "cast_cache",
            "16-bit copies of frozen weights, saved for backward" if frozen else "autocast's 16-bit weights",
            f"P × {size} B",
            f"{casts:,} × {size} B",
            casts * size,
            share.weights,
            "approximate",
            "aten/src/ATen/autocast_mode.cpp",
        )
