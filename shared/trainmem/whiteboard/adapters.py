"""LoRA and QLoRA: which layers get an adapter, how many parameters, and what a packed base weighs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from trainmem.job import BaseQuantization, Lora, TrainingJob
from trainmem.model.architecture import Architecture
from trainmem.model.lora import Adapter, adapters
from trainmem.whiteboard.term import Term, share_term

__all__ = [
    "NF4_BYTES_PER_PARAMETER",
    "FrozenBase",
    "Shapes",
    "adapter_inputs",
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


def _adapters(architecture: Architecture, lora: Lora) -> Iterator[tuple[Adapter, int]]:
    found = adapters(architecture, lora)
    for kind, copies in Counter(found.layer_kinds).items():
        for adapter in found.blocks[kind]:
            yield adapter, copies
    for adapter in (*found.embeddings, *found.final, *found.head):
        yield adapter, 1


def adapter_shapes(architecture: Architecture, lora: Lora) -> Shapes:
    """Shapes of all adapter matrices: A is (rank, inputs) and B is (outputs, rank), with their copies."""
    return tuple((shape, copies) for a, copies in _adapters(architecture, lora) for shape in a.shapes)


def adapter_inputs(architecture: Architecture, lora: Lora) -> int:
    """Elements a token that all adapters read and hand from A to B: the sum of inputs + rank."""
    return sum((a.inputs + a.rank) * copies for a, copies in _adapters(architecture, lora))


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
    return adapters(architecture, lora).parameter_count


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
    scale for each output row; embeddings, norms, biases, stacked experts, the head and GPT-2's Conv1D, which is no
    linear layer to bitsandbytes, stay at ``weight_bytes``.
    Sources: Dettmers et al. 2023 (QLoRA), section 3; Dettmers et al. 2022 (LLM.int8); bitsandbytes
    functional.py.
    """
    packed = packed_bytes = 0
    if quantization != "none" and architecture.has_linear_layers:
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
