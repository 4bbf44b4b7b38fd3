"""LoRA and QLoRA: which layers get an adapter, how many parameters, and what a packed base weighs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from trainmem.job import BaseQuantization, JobError, Lora, TrainingJob
from trainmem.model.architecture import Architecture, Parameter
from trainmem.whiteboard.term import Term, share_term

__all__ = [
    "NF4_BYTES_PER_PARAMETER",
    "FrozenBase",
    "Shapes",
    "adapted_layers",
    "adapter_shapes",
    "base_terms",
    "frozen_base",
    "lora_parameters",
    "trainable_shapes",
]

Shapes: TypeAlias = tuple[tuple[tuple[int, ...], int], ...]
"""Tensors as (shape, how many of them)."""

NF4_BYTES_PER_PARAMETER = 0.5 + 1 / 64 + 4 / (64 * 256)
"""0.515869: four bits, a byte of scale for 64 values, an fp32 scale for 256 of those (Dettmers et al.
2023)."""


def _is_target(parameter: Parameter, lora: Lora) -> bool:
    if parameter.kind != "linear":
        return False
    if lora.targets == "all-linear":
        return True
    module = parameter.name.removesuffix(".weight")
    return any(module == t or module.endswith("." + t) for t in lora.targets)


def adapted_layers(architecture: Architecture, lora: Lora) -> tuple[tuple[Parameter, int], ...]:
    """The linear layers that get an adapter, each with its number of copies in the model.

    "all-linear" is every linear layer but the output head, as PEFT reads it; stacked expert weights are not
    linear layers and get none. Raises `JobError` when nothing matches.
    """
    found: Counter[Parameter] = Counter()
    for kind, copies in Counter(architecture.layer_kinds).items():
        for parameter in architecture.blocks[kind]:
            if _is_target(parameter, lora):
                found[parameter] += copies
    found.update(parameter for parameter in architecture.final if _is_target(parameter, lora))
    if not found:
        block = architecture.blocks[architecture.layer_kinds[0]]
        names = ", ".join(p.name.removesuffix(".weight").split(".")[-1] for p in block if p.kind == "linear")
        raise JobError(
            f"lora.targets: {', '.join(lora.targets)} matches no linear layer; this model has {names}"
        )
    return tuple(found.items())


def adapter_shapes(architecture: Architecture, lora: Lora) -> Shapes:
    """Shapes of all adapter matrices: A is (rank, inputs) and B is (outputs, rank), with their copies."""
    shapes: list[tuple[tuple[int, ...], int]] = []
    for parameter, copies in adapted_layers(architecture, lora):
        outputs, inputs = parameter.shape
        shapes += [((lora.rank, inputs), copies), ((outputs, lora.rank), copies)]
    return tuple(shapes)


def trainable_shapes(architecture: Architecture, lora: Lora | None) -> Shapes:
    """Shapes of every tensor that trains: the adapters, or all parameters."""
    if lora is not None:
        return adapter_shapes(architecture, lora)
    found: Counter[tuple[int, ...]] = Counter()
    for kind, copies in Counter(architecture.layer_kinds).items():
        for parameter in architecture.blocks[kind]:
            found[parameter.shape] += copies
    outside = [*architecture.embeddings, *architecture.final]
    outside += [p for p in architecture.head if not (architecture.tied and p.kind == "head")]
    found.update(parameter.shape for parameter in outside)
    return tuple(found.items())


def lora_parameters(architecture: Architecture, lora: Lora) -> int:
    """Trainable parameters of the adapters.

    Equation: sum over adapted layers of r (inputs + outputs).
    Source: Hu et al. 2021, section 4.1. Rank 16 on every linear layer of Llama 3.1 8B: 41,943,040.
    """
    return sum(prod(shape) * copies for shape, copies in adapter_shapes(architecture, lora))


@dataclass(frozen=True, kw_only=True, slots=True)
class FrozenBase:
    """Bytes of a frozen base: the packed linear weights, and everything that stays at ``weight_bytes``."""

    packed_parameters: int
    packed_bytes: int
    plain_parameters: int
    plain_bytes: int


def frozen_base(architecture: Architecture, quantization: BaseQuantization, weight_bytes: int) -> FrozenBase:
    """A frozen base of one copy of the model.

    Equations: nf4 0.515869 B for each weight of a linear layer (double quantised); int8 1 B, and an fp32
    scale for each output row; embeddings, norms, biases, stacked experts and the head stay at
    ``weight_bytes``.
    Sources: Dettmers et al. 2023 (QLoRA), section 3; Dettmers et al. 2022 (LLM.int8); bitsandbytes
    functional.py.
    """
    packed = packed_bytes = 0
    if quantization != "none":
        for kind, copies in Counter(architecture.layer_kinds).items():
            for parameter in architecture.blocks[kind]:
                if parameter.kind == "linear":
                    elements = parameter.numel
                    nf4 = round(elements * NF4_BYTES_PER_PARAMETER)
                    packed += copies * elements
                    packed_bytes += copies * (
                        nf4 if quantization == "nf4" else elements + 4 * parameter.shape[0]
                    )
    plain = architecture.parameter_count - packed
    return FrozenBase(
        packed_parameters=packed,
        packed_bytes=packed_bytes,
        plain_parameters=plain,
        plain_bytes=plain * weight_bytes,
    )


def base_terms(job: TrainingJob, architecture: Architecture, weight_bytes: int, ranks: int) -> Iterator[Term]:
    """The frozen base of a job with LoRA, then its adapters, on one of ``ranks`` ranks."""
    assert job.lora is not None
    base = frozen_base(architecture, job.base_quantization, weight_bytes)
    if base.packed_parameters:
        each = "0.515869 B" if job.base_quantization == "nf4" else "1 B + scales"
        yield share_term(
            "weights",
            f"frozen linear weights in {job.base_quantization.upper()}",
            f"P of linear layers × {each}",
            f"{base.packed_parameters:,} × {each}",
            base.packed_bytes,
            ranks,
            "exact",
            "Dettmers et al. 2023" if job.base_quantization == "nf4" else "Dettmers et al. 2022",
        )
    yield share_term(
        "weights",
        "frozen embeddings, norms and head" if base.packed_parameters else "frozen base",
        f"P × {weight_bytes} B",
        f"{base.plain_parameters:,} × {weight_bytes} B",
        base.plain_bytes,
        ranks,
        "exact",
        "parameter shapes",
    )
    count = lora_parameters(architecture, job.lora)
    yield share_term(
        "weights",
        f"rank {job.lora.rank} adapters",
        "sum of r (inputs + outputs) × 4 B",
        f"{count:,} × 4 B",
        count * 4,
        ranks,
        "exact",
        "Hu et al. 2021; PEFT keeps adapters in fp32",
    )
