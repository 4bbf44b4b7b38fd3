"""The model on the device before the first step: parameters, buffers, packed bases, adapters, master copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from trainmem.buckets import BUCKETS
from trainmem.job import Lora, TrainingJob
from trainmem.model import Architecture, Buffer, Parameter
from trainmem.model.lora import adapters
from trainmem.tape.claims import fully_sharded
from trainmem.tape.optimizers import Sink, Trainable
from trainmem.tape.packing import Packing, packed_by_block
from trainmem.tape.structure import quantized_weights, weight_itemsize

__all__ = ["Loaded", "load", "loaded_parameters", "trainables"]

_WEIGHTS = BUCKETS.index("weights")
_MASTERS = BUCKETS.index("master_weights")
_TEMPORARIES = BUCKETS.index("temporaries")

ADAPTER_ITEMSIZE = 4
"""PEFT casts 16-bit adapters to fp32 (autocast_adapter_dtype)."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Counts of what was loaded."""

    parameters: int
    trainable_parameters: int
    biases: tuple[tuple[int, int, str], ...] = ()
    """(number, elements, name) of fp32 biases of packed layers, which may cast them when they first run."""

    def cast_biases(self, sink: Sink) -> None:
        """The first forward puts a bias in the dtype that its 4-bit layer computes in in place of an fp32 one."""
        for number, numel, name in self.biases:
            sink.allocate(2 * numel, _WEIGHTS, "parameter", name)
            sink.free(number)


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
    heads = {parameter.name for parameter in architecture.head}
    parameters = loaded_parameters(architecture)
    packing = Packing(sink, job, architecture, itemsize, numbers, empty_cache)
    by_block = packed_by_block(job, base)
    if by_block:
        packing.pack_blocks()
    for prefix, parameter in parameters:
        name = prefix + parameter.name
        if name not in numbers and (prefix or parameter.name not in heads):
            numbers[name] = sink.allocate(parameter.numel * itemsize, _WEIGHTS, "parameter", name)
    for buffer in architecture.buffers:
        if by_block:
            # frequencies are computed on the host
            sink.allocate(buffer.size_bytes, _WEIGHTS, "buffer", buffer.name)
        elif buffer.name.endswith("original_inv_freq"):
            sink.allocate(buffer.size_bytes, _WEIGHTS, "buffer", buffer.name)
            sink.free(_frequencies(sink, buffer, _TEMPORARIES))
        elif buffer.name.endswith("inv_freq"):
            _frequencies(sink, buffer, _WEIGHTS)
        else:
            sink.allocate(buffer.size_bytes, _WEIGHTS, "buffer", buffer.name)
    for prefix, parameter in parameters:
        if not prefix and parameter.name in heads:
            name = parameter.name
            numbers[name] = sink.allocate(parameter.numel * itemsize, _WEIGHTS, "parameter", name)
    if architecture.tied:
        # the head is created, then replaced by the embedding's weight
        numel = architecture.vocab_size * architecture.hidden_size
        sink.free(sink.allocate(numel * itemsize, _TEMPORARIES, "head before tying", "lm_head"))
    if fully_sharded(job):
        return _shard(sink, architecture, itemsize, job.sharding.data_parallel, numbers)
    if job.base_quantization != "none" and not by_block:
        empty_cache()
        packing.pack(parameters)
    if job.lora is not None:
        return _adapt(sink, architecture, job, itemsize, base, packing.biases)
    if job.precision in ("bf16_master", "bf16_master_fp32_grads"):
        for p in trainables(architecture, None, 4):
            sink.allocate(p.size_bytes, _MASTERS, "master weight", p.name)
    return Loaded(base, base)


def _frequencies(sink: Sink, buffer: Buffer, bucket: int) -> int:
    """1 / base ** (arange / dim), computed once for the buffer and again when weights are initialised.

    Scaled kinds of rotary embedding make more of the same size.
    """
    size, name = buffer.size_bytes, buffer.name
    arange = sink.allocate(size, _TEMPORARIES, "frequencies", name)
    exponent = sink.allocate(size, _TEMPORARIES, "frequencies", name)
    sink.free(arange)
    power = sink.allocate(size, _TEMPORARIES, "frequencies", name)
    sink.free(sink.allocate(8, _TEMPORARIES, "frequencies", name))
    sink.free(exponent)
    reciprocal = sink.allocate(size, _TEMPORARIES, "frequencies", name)
    result = sink.allocate(size, bucket, "buffer", name)
    sink.free(reciprocal)
    sink.free(power)
    return result


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


def _adapt(
    sink: Sink,
    architecture: Architecture,
    job: TrainingJob,
    itemsize: int,
    base: int,
    biases: Sequence[tuple[int, int, str]],
) -> Loaded:
    """PEFT makes each adapter in the dtype its layer computes with, then all of them fp32.

    An NF4 layer computes in bf16; an int8 weight is no floating dtype, and its adapter stays fp32.
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
    created = [
        sink.allocate(p.numel * width, _WEIGHTS, "adapter", p.name)
        for p, width in zip(matrices, widths, strict=True)
    ]
    for p, width, number in zip(matrices, widths, created, strict=True):
        if width != ADAPTER_ITEMSIZE:
            sink.allocate(p.size_bytes, _WEIGHTS, "adapter", p.name)
            sink.free(number)
    trained = sum(p.numel for p in matrices)
    return Loaded(base + trained, trained, tuple(biases))
