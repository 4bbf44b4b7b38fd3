"""The model on the device before the first step: parameters, buffers, packed bases, adapters, master copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from trainmem.buckets import BUCKETS
from trainmem.job import Lora, TrainingJob
from trainmem.model import Architecture, Parameter
from trainmem.model.lora import adapters
from trainmem.tape.claims import fully_sharded, has_masters
from trainmem.tape.creation import Creation, in_order
from trainmem.tape.optimizers import Sink, Trainable
from trainmem.tape.packing import Packing, packed_by_block
from trainmem.tape.structure import quantized_weights, weight_itemsize

__all__ = ["Loaded", "load", "loaded_parameters", "trainables"]

_WEIGHTS = BUCKETS.index("weights")
_MASTERS = BUCKETS.index("master_weights")

ADAPTER_ITEMSIZE = 4
"""PEFT casts 16-bit adapters to fp32 (autocast_adapter_dtype)."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Counts of what was loaded."""

    parameters: int
    trainable_parameters: int
    biases: tuple[tuple[int, int, str], ...] = ()
    """(number, elements, name) of fp32 biases of packed layers, which may cast them when they first run."""

    def cast_biases(self, sink: Sink, names: frozenset[str]) -> None:
        """The first forward puts a bias in the dtype that its packed layer computes in in place of an fp32 one.

        ``names``: of those it does, within a block.
        """
        for number, numel, name in self.biases:
            if local_name(name) in names:
                sink.allocate(2 * numel, _WEIGHTS, "parameter", name)
                sink.free(number)


def local_name(name: str) -> str:
    """A parameter's name within its block, or its whole name outside the blocks."""
    return name.split(".", 2)[2] if name.startswith("layers.") else name


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


def load(
    sink: Sink, job: TrainingJob, architecture: Architecture, empty_cache: Callable[[], object] = lambda: None
) -> Loaded:
    """Allocate the model as the harness builds it: created on the device, packed layer by layer, adapted.

    A base too large for the device before it is packed is created and packed block by block. ``empty_cache`` is
    called before layers are packed.
    """
    itemsize = weight_itemsize(job)
    base = architecture.parameter_count
    numbers: dict[str, int] = {}
    parameters = loaded_parameters(architecture)
    packing = Packing(sink, job, architecture, itemsize, numbers, empty_cache)
    by_block = packed_by_block(job, base)
    if by_block:
        packing.pack_blocks()
    creation = Creation(sink, architecture, itemsize, numbers, on_host=by_block)
    creation.body()
    creation.head()
    if fully_sharded(job):
        return _shard(sink, architecture, itemsize, job.sharding.data_parallel, numbers)
    if job.base_quantization != "none" and not by_block:
        empty_cache()
        packing.pack(parameters)
    if job.lora is not None:
        return _adapt(sink, architecture, job, itemsize, base, packing.biases)
    if has_masters(job):
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
    for group in map(in_order, (*blocks.values(), root)):
        for shard in group:
            sink.allocate(shard.size_bytes, _WEIGHTS, "sharded parameter", shard.name)
        for shard in group:
            sink.free(numbers[shard.name])
    return Loaded(base, base)


def _adapt(
    sink: Sink,
    architecture: Architecture,
    job: TrainingJob,
    itemsize: int,
    base: int,
    biases: Sequence[tuple[int, int, str]],
) -> Loaded:
    """PEFT makes each adapter in the dtype its layer computes with, then all of them fp32.

    An NF4 layer computes in bf16; an int8 weight is no floating dtype, and its adapter stays fp32. Adapters of
    layers are made first, then those of single parameters: routers and stacked experts.
    """
    matrices = trainables(architecture, job.lora, itemsize)
    packed: set[str] = set()
    if job.base_quantization != "none":
        names = quantized_weights(architecture)
        packed = {prefix + p.name for prefix, p in loaded_parameters(architecture) if p.name in names}
    of_packed = 2 if job.base_quantization == "nf4" else ADAPTER_ITEMSIZE
    widths = [
        of_packed if p.name.rpartition(".lora_")[0] + ".weight" in packed else itemsize for p in matrices
    ]
    layers = {
        prefix + p.name.removesuffix(".weight")
        for prefix, p in loaded_parameters(architecture)
        if p.kind == "linear"
    }
    created: dict[str, int] = {}
    for of_layers in (True, False):
        for p, width in zip(matrices, widths, strict=True):
            if (p.name.rpartition(".lora_")[0] in layers) is of_layers:
                created[p.name] = sink.allocate(p.numel * width, _WEIGHTS, "adapter", p.name)
    for p, width in zip(matrices, widths, strict=True):
        if width != ADAPTER_ITEMSIZE:
            sink.allocate(p.size_bytes, _WEIGHTS, "adapter", p.name)
            sink.free(created[p.name])
    trained = sum(p.numel for p in matrices)
    return Loaded(base + trained, trained, tuple(biases))
