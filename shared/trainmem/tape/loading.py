"""The model on the device before the first step: parameters, buffers, packed bases, adapters, master copies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

from trainmem.buckets import BUCKETS
from trainmem.job import Lora, TrainingJob
from trainmem.model import Architecture, Parameter
from trainmem.model.lora import Adapter, adapters
from trainmem.tape.claims import fully_sharded, has_masters
from trainmem.tape.creation import Creation, in_order
from trainmem.tape.optimizers import Sink, Trainable, trainable
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
            trainable(p.name, (-(-p.shape[0] // ranks), *p.shape[1:]), p.itemsize)
            for p in trainables(architecture, lora, itemsize)
        )
    if lora is None:
        return _in_all_blocks(
            architecture.layer_kinds,
            {kind: _whole(block, itemsize) for kind, block in architecture.blocks.items()},
            before=_whole(architecture.embeddings, itemsize),
            after=_whole((*architecture.final, *_head(architecture)), itemsize),
        )
    found = adapters(architecture, lora)
    return _in_all_blocks(
        found.layer_kinds,
        {kind: _matrices(block) for kind, block in found.blocks.items()},
        before=_matrices(found.embeddings),
        after=_matrices((*found.final, *found.head)),
    )


def _head(architecture: Architecture) -> list[Parameter]:
    """The head's parameters, without a weight that is the embedding's."""
    return [p for p in architecture.head if not (architecture.tied and p.kind == "head")]


def _whole(parameters: Iterable[Parameter], itemsize: int) -> list[Trainable]:
    return [trainable(p.name, p.shape, itemsize) for p in parameters]


def _matrices(adapters: Iterable[Adapter]) -> list[Trainable]:
    return [
        trainable(
            f"{adapter.parameter.name.removesuffix('.weight')}.lora_{letter}.weight", shape, ADAPTER_ITEMSIZE
        )
        for adapter in adapters
        for letter, shape in zip("AB", adapter.shapes, strict=True)
    ]


def _adapted_weights(architecture: Architecture, lora: Lora) -> list[str]:
    """Of every matrix in `trainables`, the name of the weight within its block."""
    found = adapters(architecture, lora)
    blocks = {kind: _twice(block) for kind, block in found.blocks.items()}
    weights = _twice(found.embeddings)
    for kind in found.layer_kinds:
        weights += blocks[kind]
    return weights + _twice((*found.final, *found.head))


def _twice(adapters: Iterable[Adapter]) -> list[str]:
    names = [adapter.parameter.name.removesuffix(".weight") + ".weight" for adapter in adapters]
    return [name for name in names for _ in "AB"]


def _in_all_blocks(
    kinds: Sequence[str],
    blocks: Mapping[str, Sequence[Trainable]],
    *,
    before: Sequence[Trainable],
    after: Sequence[Trainable],
) -> tuple[Trainable, ...]:
    """What lies in blocks under the names that it has there; each tensor is worked out once for all of a kind."""
    inside = [
        Trainable(f"layers.{index}.{p.name}", p.shape, p.itemsize, p.numel, p.size_bytes)
        for index, kind in enumerate(kinds)
        for p in blocks[kind]
    ]
    return (*before, *inside, *after)


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
        masters = trainables(architecture, None, 4)
        sizes, names = [p.size_bytes for p in masters], [p.name for p in masters]
        sink.allocate_all(sizes, _MASTERS, ["master weight"] * len(sizes), names)
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
    assert job.lora is not None
    matrices = trainables(architecture, job.lora, itemsize)
    packed: frozenset[str] = frozenset()
    if job.base_quantization != "none":
        packed = quantized_weights(architecture)
    of_packed = 2 if job.base_quantization == "nf4" else ADAPTER_ITEMSIZE
    weights = _adapted_weights(architecture, job.lora)
    width_of = {weight: of_packed if weight in packed else itemsize for weight in set(weights)}
    widths = [width_of[weight] for weight in weights]
    outside = (*architecture.embeddings, *architecture.final, *architecture.head)
    layers = {p.name for p in chain(outside, *architecture.blocks.values()) if p.kind == "linear"}
    created = [-1] * len(matrices)
    for of_layers in (True, False):
        some = [index for index, weight in enumerate(weights) if (weight in layers) is of_layers]
        sizes = [matrices[index].numel * widths[index] for index in some]
        names = [matrices[index].name for index in some]
        numbers = sink.allocate_all(sizes, _WEIGHTS, ["adapter"] * len(some), names)
        for index, number in zip(some, numbers, strict=True):
            created[index] = number
    for p, width, number in zip(matrices, widths, created, strict=True):
        if width != ADAPTER_ITEMSIZE:
            sink.allocate(p.size_bytes, _WEIGHTS, "adapter", p.name)
            sink.free(number)
    trained = sum([p.numel for p in matrices])
    return Loaded(base + trained, trained, tuple(biases))
