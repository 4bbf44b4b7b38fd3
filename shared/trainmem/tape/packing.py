"""A base's linear layers packed to 4 or 8 bits before the first step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby

from trainmem.buckets import BUCKETS
from trainmem.device import device
from trainmem.job import TrainingJob
from trainmem.model import Architecture, Parameter
from trainmem.tape.hardware import hardware
from trainmem.tape.kernels import reduction_semaphores, reduction_staging
from trainmem.tape.optimizers import Sink
from trainmem.tape.structure import quantized_weights

__all__ = ["Packing", "packed_by_block"]

_WEIGHTS = BUCKETS.index("weights")
_TEMPORARIES = BUCKETS.index("temporaries")
_NF4_BLOCK = 64
_NF4_NESTED_BLOCK = 256
_UNPACKED_ITEMSIZE = 2


def packed_by_block(job: TrainingJob, parameters: int, room_bytes: int | None = None) -> bool:
    """Whether a base of so many parameters is made and packed one block at a time.

    So it is where its weights in 16 bits would take more than half of the room, which is the device's memory
    unless it is given: a 70B model does not fit a GPU before it is packed.
    """
    if job.base_quantization == "none":
        return False
    room = device(job.device).visible_bytes if room_bytes is None else room_bytes
    return 2 * _UNPACKED_ITEMSIZE * parameters > room


class Packing:
    """Packs layers whose weights are in ``numbers`` by name (allocation numbers), and notes what it made.

    ``biases`` are those of packed layers in fp32, which may cast them when they first run: number, elements, name.
    """

    def __init__(
        self,
        sink: Sink,
        job: TrainingJob,
        architecture: Architecture,
        itemsize: int,
        numbers: dict[str, int],
        empty_cache: Callable[[], object],
    ) -> None:
        self.sink, self.itemsize, self.numbers = sink, itemsize, numbers
        self.quantization = job.base_quantization
        chip = hardware(job.device)
        self._chip = {"sm_count": chip.sm_count, "threads_per_sm": chip.threads_per_sm}
        self.empty_cache = empty_cache
        self.biases: list[tuple[int, int, str]] = []
        self._parameters = tuple(architecture.parameters())
        self._names = quantized_weights(architecture)
        self._elements = {prefix + p.name: p.numel for prefix, p in self._parameters}
        self._first = True

    def pack(self, parameters: Iterable[tuple[str, Parameter]]) -> None:
        """Layer after layer, each after the layer it replaces is freed; biases are made anew."""
        for prefix, parameter in parameters:
            if parameter.name not in self._names:
                continue
            name = prefix + parameter.name
            bias = name.removesuffix(".weight") + ".bias"
            self.sink.free(self.numbers[name])
            self.sink.free(self.numbers.get(bias, -1))
            self._pack_weight(parameter, name, on_device=False)
            if bias in self.numbers:
                size = self.itemsize * self._elements[bias]
                self._cast_later(self.sink.allocate(size, _WEIGHTS, "parameter", bias), bias)

    def pack_blocks(self) -> None:
        """Block after block: its parameters are made, its layers packed, then the unpacked ones freed.

        4-bit layers are packed where they are and keep their biases; 8-bit ones go through the host as in `pack`.
        """
        for prefix, group in groupby(self._parameters, key=lambda named: named[0]):
            if not prefix:
                continue
            block = list(group)
            for _, parameter in block:
                name = prefix + parameter.name
                size = parameter.numel * self.itemsize
                self.numbers[name] = self.sink.allocate(size, _WEIGHTS, "parameter", name)
            if self.quantization == "int8":
                self.empty_cache()
                self.pack(block)
                continue
            layers = [parameter for _, parameter in block if parameter.name in self._names]
            for parameter in layers:
                name = prefix + parameter.name
                self._pack_weight(parameter, name, on_device=True)
                bias = name.removesuffix(".weight") + ".bias"
                if bias in self.numbers:
                    self._cast_later(self.numbers[bias], bias)
            for parameter in layers:
                self.sink.free(self.numbers[prefix + parameter.name])

    def _cast_later(self, number: int, bias: str) -> None:
        if self.itemsize != _UNPACKED_ITEMSIZE:
            self.biases.append((number, self._elements[bias], bias))

    def _pack_weight(self, parameter: Parameter, name: str, *, on_device: bool) -> None:
        """Quantise one weight on the device (bitsandbytes 0.50, functional.quantize_4bit and int8 quantisation).

        NF4 with double quantisation keeps half a byte an element, a byte a block of 64, an fp32 scale a block of
        256 of those, and small tables; int8 a byte an element and an fp32 scale a row, made from an fp16 copy. A
        weight that comes from the host is there whole first. With the first one the library makes the table for
        8-bit scales and keeps it.
        """
        sink, numel = self.sink, parameter.numel
        if self.quantization == "int8":
            whole = sink.allocate(2 * numel, _TEMPORARIES, "weight before packing", name)
            sink.allocate(4 * parameter.shape[0], _WEIGHTS, "8-bit row scales", name)
            sink.allocate(numel, _WEIGHTS, "8-bit weight", name)
            sink.free(whole)
            return
        whole = -1
        if not on_device:
            whole = sink.allocate(numel * self.itemsize, _TEMPORARIES, "weight before packing", name)
        blocks, mean = -(-numel // _NF4_BLOCK), []
        scales = sink.allocate(4 * blocks, _TEMPORARIES, "4-bit scales", name)
        sink.allocate(-(-numel // 2), _WEIGHTS, "4-bit weight", name)
        sink.allocate(64, _WEIGHTS, "4-bit code book", name)
        sizes = sink.allocate(64, _TEMPORARIES, "4-bit code book", name)
        largest = sink.allocate(4, _TEMPORARIES, "4-bit code book", name)
        sink.free(sizes)
        sink.free(largest)
        sink.allocate(4, _WEIGHTS, "4-bit scale offset", name)
        dims = {**self._chip, "one": 1, "scales": blocks}
        for needed in (reduction_staging, reduction_semaphores):
            size = needed(dims, ("one",), ("scales",), True, 4)
            mean.append(sink.allocate(size, _TEMPORARIES, "mean of the 4-bit scales", name))
        for number in reversed(mean):
            sink.free(number)
        centred = sink.allocate(4 * blocks, _TEMPORARIES, "4-bit scales centred", name)
        if self._first:
            sink.allocate(1024, _WEIGHTS, "8-bit code book")
            self._first = False
        sink.allocate(4 * -(-blocks // _NF4_NESTED_BLOCK), _WEIGHTS, "4-bit nested scales", name)
        sink.allocate(blocks, _WEIGHTS, "4-bit packed scales", name)
        sink.allocate(1024, _WEIGHTS, "4-bit scale code book", name)
        sink.free(centred)
        sink.free(scales)
        sink.free(whole)
