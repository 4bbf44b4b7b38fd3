"""What each optimizer keeps, counted tensor by tensor from real shapes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from trainmem.job import Optimizer, TrainingJob
from trainmem.model.architecture import Architecture
from trainmem.whiteboard.adapters import Shapes, trainable_shapes
from trainmem.whiteboard.sharding import offload_leaves_device, shares
from trainmem.whiteboard.states import recipe_of
from trainmem.whiteboard.term import Term, factor, share_term, shown, term

__all__ = [
    "SMALLEST_8BIT_ELEMENTS",
    "SMALLEST_PAGED_ELEMENTS",
    "OptimizerState",
    "adafactor_elements",
    "optimizer_state",
    "optimizer_terms",
]

SMALLEST_8BIT_ELEMENTS = 4096
"""bitsandbytes quantises the state of tensors with at least this many elements (optimizer.py)."""
SMALLEST_PAGED_ELEMENTS = 100_000
"""bitsandbytes keeps the state of tensors with at least this many elements in managed memory."""

_BYTE_STATES: dict[Optimizer, int] = {"adamw8bit": 2, "paged_adamw8bit": 2, "lion8bit": 1}


def adafactor_elements(shape: tuple[int, ...]) -> int:
    """Elements of Adafactor's second moment for one tensor.

    Equation: n x m keeps n + m (a row and a column), a vector keeps all of itself; leading dimensions repeat.
    Source: Shazeer and Stern 2018, section 3; torch/optim/_adafactor.py.
    """
    if len(shape) < 2:
        return prod(shape)
    return prod(shape[:-2]) * (shape[-2] + shape[-1])


_NAMES: dict[Optimizer, str] = {
    "adamw": "AdamW's two moments",
    "adamw_fused": "AdamW's two moments",
    "adamw_loop": "AdamW's two moments",
    "adamw8bit": "8-bit AdamW's two moments",
    "paged_adamw8bit": "paged 8-bit AdamW's two moments",
    "lion8bit": "8-bit Lion's momentum",
    "sgd": "SGD's state",
    "sgd_momentum": "SGD's momentum",
    "adafactor": "Adafactor's rows and columns",
    "muon": "Muon's momentum",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerState:
    """Bytes in device memory, bytes in managed memory outside torch's allocator, and how they are counted."""

    device_bytes: int
    managed_bytes: int = 0
    equation: str
    numbers: str


def _block_quantised(shapes: Shapes, states: int, *, paged: bool) -> OptimizerState:
    quantised = small = managed_elements = 0
    size = managed_bytes = 0
    for shape, copies in shapes:
        elements = prod(shape)
        state_bytes = copies * states * (elements - (-elements // 256) * 4)
        if elements < SMALLEST_8BIT_ELEMENTS:
            small += copies * elements
        elif paged and elements >= SMALLEST_PAGED_ELEMENTS:
            managed_elements += copies * elements
            managed_bytes += state_bytes
        else:
            quantised += copies * elements
            size += state_bytes
    each = f"{factor(states * (1 + 4 / 256))} B"
    return OptimizerState(
        device_bytes=size + small * 4 * states,
        managed_bytes=managed_bytes,
        equation=f"P × {each} + P in tensors below 4,096 elements × {4 * states} B",
        numbers=f"{quantised:,} × {each} + {small:,} × {4 * states} B",
    )


def optimizer_state(optimizer: Optimizer, shapes: Shapes, element_bytes: int) -> OptimizerState:
    """Optimizer state of trainable tensors given as (shape, copies).

    Equations, with e = ``element_bytes`` (the dtype of the tensor that is updated):
    AdamW 2 e P; momentum e P; SGD nothing; AdamW 8-bit 2 (1 + 4/256) = 2.03125 B an element, and 8 B in
    tensors below 4,096 elements; Lion 8-bit half of that; Adafactor e (n + m) for a matrix; Muon e for
    matrices and AdamW's 2 e for vectors.
    Sources: torch/optim; bitsandbytes optimizer.py (blocks of 256); Jordan et al. 2024 for Muon.
    Leaves out: step counters (4 B a tensor) and the foreach temporary of the optimizer step.
    """
    e = element_bytes
    elements = sum(copies * prod(shape) for shape, copies in shapes)
    if optimizer in ("adamw", "adamw_fused", "adamw_loop"):
        return OptimizerState(
            device_bytes=2 * e * elements,
            equation=f"P × 2 moments × {e} B",
            numbers=f"{elements:,} × 2 × {e} B",
        )
    if optimizer == "sgd":
        return OptimizerState(device_bytes=0, equation="nothing", numbers="0 B")
    if optimizer == "sgd_momentum":
        return OptimizerState(
            device_bytes=e * elements, equation=f"P × {e} B", numbers=f"{elements:,} × {e} B"
        )
    if optimizer == "adafactor":
        kept = sum(copies * adafactor_elements(shape) for shape, copies in shapes)
        return OptimizerState(
            device_bytes=e * kept,
            equation=f"(rows + columns of matrices + vectors) × {e} B",
            numbers=f"{kept:,} × {e} B",
        )
    if optimizer == "muon":
        vectors = sum(copies * prod(shape) for shape, copies in shapes if len(shape) < 2)
        return OptimizerState(
            device_bytes=e * (elements + vectors),
            equation=f"matrices × {e} B + vectors × {2 * e} B",
            numbers=f"{elements - vectors:,} × {e} B + {vectors:,} × {2 * e} B",
        )
    states = 1 if optimizer == "lion8bit" else 2
    return _block_quantised(shapes, states, paged=optimizer == "paged_adamw8bit")


def optimizer_terms(job: TrainingJob, architecture: Architecture) -> Iterator[Term]:
    """Optimizer state and Kahan compensation of one rank; nothing of it when it is offloaded."""
    recipe, ranks = recipe_of(job), shares(job.sharding).optimizer
    shapes = trainable_shapes(architecture, job.lora)
    state = optimizer_state(job.optimizer, shapes, recipe.state_bytes)
    name = _NAMES[job.optimizer]
    if offload_leaves_device(job):
        where = "host memory" if job.sharding.offload == "cpu" else "an NVMe disk"
        held = -(-(state.device_bytes + state.managed_bytes) // ranks)
        source = "ZeRO-Offload (Ren et al. 2021)"
        numbers = f"{shown(held)} in {where}, on the device 0 B"
        yield term("optimizer_state", f"{name}, offloaded", "0 B", numbers, 0, "assumed", source)
        return
    if job.sharding.offload != "none":
        name += ", offloaded to the same memory"
    if state.managed_bytes:
        name += f", with {shown(-(-state.managed_bytes // ranks))} more in managed memory"
    source = "bitsandbytes optimizer.py" if "8bit" in job.optimizer else "torch/optim"
    yield share_term(
        "optimizer_state", name, state.equation, state.numbers, state.device_bytes, ranks, "exact", source
    )
    if recipe.compensation_bytes:
        count, size = architecture.parameter_count, recipe.compensation_bytes
        yield share_term(
            "optimizer_state",
            "Kahan compensation",
            f"P × {size} B",
            f"{count:,} × {size} B",
            count * size,
            ranks,
            "exact",
            "Zamirai et al. 2020",
        )
