"""The model on the device before the first step: parameters, buffers, packed bases, adapters, master copies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from trainmem.buckets import BUCKETS
from trainmem.job import BaseQuantization, Lora, TrainingJob
from trainmem.model import Architecture, Parameter
from trainmem.model.lora import adapters
from trainmem.tape.optimizers import Sink, Trainable
from trainmem.tape.structure import fully_sharded, quantized_weights, weight_itemsize

__all__ = ["Loaded", "load", "loaded_parameters", "trainables"]

_WEIGHTS = BUCKETS.index("weights")
_MASTERS = BUCKETS.index("master_weights")
_TEMPORARIES = BUCKETS.index("temporaries")

_NF4_BLOCK = 64
_NF4_NESTED_BLOCK = 256
ADAPTER_ITEMSIZE = 4
"""PEFT casts 16-bit adapters to fp32 (autocast_adapter_dtype)."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Counts of what was loaded."""

    parameters: int
    trainable_parameters: int


@lru_cache(maxsize=256)
def loaded_parameters(architecture: Architecture) -> tuple[tuple[str, Parameter], ...]:
    """(path prefix, parameter) of the whole model, in registration order."""
    return tuple(architecture.parameters())


@lru_cache(maxsize=256)
def trainables(
    architecture: Architecture, lora: Lora | None, itemsize: int, ranks: int = 0
) -> tuple[Trainable, ...]:
    """What the optimizer updates, in registration order: every parameter, or every adapter matrix.

    ``ranks``: of a fully sharded model, the first rank's shards, cut along the first dimension.
    """
    if ranks:
        return tuple(
            Trainable(p.name, (-(-p.shape[0] // ranks), *p.shape[1:]), p.itemsize)
            for p in trainables(architecture, lora, itemsize)
        )
    if lora is None:
        return tuple(
            Trainable(prefix + parameter.name, parameter.shape, itemsize)
            for prefix, parameter in loaded_parameters(architecture)
        )
    return tuple(_adapter_matrices(architecture, lora))


def _adapter_matrices(architecture: Architecture, lora: Lora) -> Iterator[Trainable]:
    found = adapters(architecture, lora)
    groups = [("", found.embeddings)]
    groups += [(f"layers.{i}.", found.blocks[kind]) for i, kind in enumerate(found.layer_kinds)]
    groups += [("", found.final), ("", found.head)]
    for prefix, parts in groups:
        for adapter in parts:
            module = prefix + adapter.parameter.name.removesuffix(".weight")
            for letter, shape in zip("AB", adapter.shapes, strict=True):
                yield Trainable(f"{module}.lora_{letter}.weight", shape, ADAPTER_ITEMSIZE)


def load(sink: Sink, job: TrainingJob, architecture: Architecture) -> Loaded:
    """Allocate the model as the harness builds it: created on the device, packed layer by layer, adapted."""
    itemsize = weight_itemsize(job)
    base = architecture.parameter_count
    numbers: dict[str, int] = {}
    for prefix, parameter in loaded_parameters(architecture):
        name = prefix + parameter.name
        numbers[name] = sink.allocate(parameter.numel * itemsize, _WEIGHTS, "parameter", name)
    for buffer in architecture.buffers:
        sink.allocate(buffer.size_bytes, _WEIGHTS, "buffer", buffer.name)
    if architecture.tied:
        # the head is created, then replaced by the embedding's weight
        numel = architecture.vocab_size * architecture.hidden_size
        sink.free(sink.allocate(numel * itemsize, _TEMPORARIES, "head before tying", "lm_head"))
    if fully_sharded(job):
        return _shard(sink, architecture, itemsize, job.sharding.data_parallel, numbers)
    if job.base_quantization != "none":
        packed = quantized_weights(architecture)
        for prefix, parameter in loaded_parameters(architecture):
            if parameter.name in packed:
                name = prefix + parameter.name
                sink.free(numbers[name])
                pack_weight(sink, job.base_quantization, parameter, itemsize, name)
    if job.lora is not None:
        return _adapt(sink, architecture, job.lora, itemsize, base)
    if job.precision in ("bf16_master", "bf16_master_fp32_grads"):
        for p in trainables(architecture, None, 4):
            sink.allocate(p.size_bytes, _MASTERS, "master weight", p.name)
    return Loaded(base, base)


def _shard(
    sink: Sink, architecture: Architecture, itemsize: int, ranks: int, numbers: dict[str, int]
) -> Loaded:
    """Block by block, the root last: this rank's shards are made, then the whole parameters are freed."""
    base = architecture.parameter_count
    shards = trainables(architecture, None, itemsize, ranks)
    blocks: dict[str, list[Trainable]] = {}
    for shard in shards:
        parts = shard.name.split(".", 2)
        blocks.setdefault(parts[1] if parts[0] == "layers" else "", []).append(shard)
    root = blocks.pop("", [])
    for group in (*blocks.values(), root):
        for shard in group:
            sink.allocate(shard.size_bytes, _WEIGHTS, "sharded parameter", shard.name)
        for shard in group:
            sink.free(numbers[shard.name])
    return Loaded(base, base)


def _adapt(sink: Sink, architecture: Architecture, lora: Lora, itemsize: int, base: int) -> Loaded:
    matrices = trainables(architecture, lora, itemsize)
    created = [sink.allocate(p.numel * itemsize, _WEIGHTS, "adapter", p.name) for p in matrices]
    if itemsize != ADAPTER_ITEMSIZE:
        for p, number in zip(matrices, created, strict=True):
            sink.allocate(p.size_bytes, _WEIGHTS, "adapter", p.name)
            sink.free(number)
    trained = sum(p.numel for p in matrices)
    return Loaded(base + trained, trained)


def pack_weight(
    sink: Sink, quantization: BaseQuantization, parameter: Parameter, itemsize: int, name: str
) -> None:
    """Quantise one weight on the device (bitsandbytes 0.50, functional.quantize_4bit and int8 quantisation).

    NF4 with double quantisation keeps half a byte an element, a byte a block of 64, an fp32 scale a block of 256
    of those, and small tables; int8 a byte an element and an fp32 scale a row.
    """
    numel = prod(parameter.shape)
    whole = sink.allocate(numel * itemsize, _TEMPORARIES, "weight before packing", name)
    if quantization == "int8":
        sink.allocate(4 * parameter.shape[0], _WEIGHTS, "8-bit row scales", name)
        sink.allocate(numel, _WEIGHTS, "8-bit weight", name)
        sink.free(whole)
        return
    blocks = -(-numel // _NF4_BLOCK)
    scales = sink.allocate(4 * blocks, _TEMPORARIES, "4-bit scales", name)
    sink.allocate(-(-numel // 2), _WEIGHTS, "4-bit weight", name)
    sink.allocate(64, _WEIGHTS, "4-bit code book", name)
    sink.allocate(4, _WEIGHTS, "4-bit scale offset", name)
    centred = sink.allocate(4 * blocks, _TEMPORARIES, "4-bit scales centred", name)
    sink.allocate(4 * -(-blocks // _NF4_NESTED_BLOCK), _WEIGHTS, "4-bit nested scales", name)
    sink.allocate(blocks, _WEIGHTS, "4-bit packed scales", name)
    sink.allocate(1024, _WEIGHTS, "4-bit scale code book", name)
    sink.free(centred)
    sink.free(scales)
    sink.free(whole)
