"""One step's forward and backward, recorded once per structure and evaluated for any sizes.

Two jobs of one family under the same levers allocate in the same order; only the sizes differ. `compiled` runs
the tiny autograd once for such a `Structure`, with at most five blocks standing for all, and keeps the events of
each part: what comes before the blocks, each block forward, the head, each block backward, and the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from trainmem.buckets import BUCKETS
from trainmem.job import ACTIVATION_DTYPE_BYTES, TrainingJob
from trainmem.model import Architecture
from trainmem.tape.core import SizeSpec, Tape, Tensor
from trainmem.tape.families import FORWARD
from trainmem.tape.model import Model, Structure

__all__ = ["Part", "Program", "compiled", "structure_of"]


def structure_of(job: TrainingJob, architecture: Architecture, *, accumulating: bool = False) -> Structure:
    """All of a job that decides the order of its events."""
    amp = job.precision in ("amp_bf16", "amp_fp16")
    itemsize = 4 if amp or job.precision in ("fp32", "fsdp_mp_bf16") else 2
    compute = ACTIVATION_DTYPE_BYTES[job.precision]
    grouped = architecture.kv_heads != architecture.heads
    kernel: Any = "cudnn" if compute == 2 else "math" if grouped else "efficient"
    kinds = architecture.layer_kinds
    return Structure(
        family=architecture.family,
        task=job.task,
        layer_kinds=kinds if len(kinds) <= 5 else (*kinds[:2], kinds[len(kinds) // 2], *kinds[-2:]),
        parameters=tuple(
            (kind, tuple(p.name for p in parts)) for kind, parts in sorted(architecture.blocks.items())
        ),
        outside=tuple(p.name for p in (*architecture.embeddings, *architecture.final, *architecture.head)),
        extra=tuple(sorted(architecture.extra.items())),
        grouped=grouped,
        tied=architecture.tied,
        one_head=architecture.kv_heads == 1,
        weight_itemsize=itemsize,
        autocast=2 if amp else 0,
        attention=job.attention,
        kernel=kernel,
        checkpointing=job.checkpointing,
        loss=job.loss,
        lora=None,
        adapter_itemsize=4,
        quantization=job.base_quantization,
        dropout=tuple(sorted((k, v > 0) for k, v in architecture.dropout.items())),
        accumulating=accumulating,
        scaled_loss=job.accumulation > 1,
        loss_scaling=job.precision == "amp_fp16",
        batch_of_one=job.micro_batch == 1,
    )


@dataclass(frozen=True, slots=True)
class Part:
    """The events of one part, in order: size index to allocate, ``~key`` to free."""

    label: tuple[Any, ...]
    codes: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Program:
    """The parts of a step and what each allocation (by key) is."""

    parts: tuple[Part, ...]
    size_of: tuple[SizeSpec, ...]
    bucket_of: tuple[int, ...]
    name_of: tuple[str, ...]
    once: frozenset[int]
    gradient_keys: tuple[tuple[str, int], ...]


@lru_cache(maxsize=512)
def compiled(structure: Structure) -> Program:
    """Run the tiny autograd over ``structure`` and cut its events into parts."""
    tape = Tape()
    model = Model(tape, structure)
    tape.block = -1
    if structure.accumulating:
        tape.accumulate_into_existing = True
    tape.boundary(("prologue",))
    if structure.autocast:
        with tape.autocasting(structure.autocast):
            loss: Tensor = FORWARD[structure.family](model)
    else:
        loss = FORWARD[structure.family](model)
    tape.boundary(("backward", "head"))
    tape.block = len(model.blocks)
    gradient = tape.alloc((), 4, "gradient of the loss")
    tape.backward(loss, gradient)
    del gradient, loss
    tape.boundary(("end",))
    codes, tape.codes = tape.codes, []
    parts: list[Part] = []
    current: list[tuple[int, int]] = []
    label: tuple[Any, ...] = ()
    for kind, value in codes:
        if kind == 2:
            if label:
                parts.append(Part(label, tuple(current)))
            label, current = value, []
        else:
            current.append((kind, value))
    gradients = tuple((n, t.storage.key if t.storage else -1) for n, t in tape.gradients.items())
    return Program(
        parts=tuple(parts),
        size_of=tuple(tape.size_of),
        bucket_of=tuple(tape.bucket_of),
        name_of=tuple(tape.name_of),
        once=frozenset(tape.once),
        gradient_keys=gradients,
    )


_ = BUCKETS
