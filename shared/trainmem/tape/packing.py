"""A base's linear layers packed to 4 or 8 bits before the first step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from itertools import groupby

from trainmem.buckets import BUCKETS
from trainmem.device import device
from trainmem.job import TrainingJob
from trainmem.model import Architecture, Parameter
from trainmem.recording import Recording
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
_OF_THE_WEIGHT = "weight"
"""Stands for its name; what has no name is the library's, which no weight owns and no ranks share."""


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
        self._chip = (chip.sm_count, chip.threads_per_sm)
        self.empty_cache = empty_cache
        self.biases: list[tuple[int, int, str]] = []
        self._parameters = tuple(architecture.parameters())
        self._names = quantized_weights(architecture)
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
                size = self.itemsize * parameter.shape[0]
                number = self.sink.allocate(size, _WEIGHTS, "parameter", bias)
                self._cast_later(number, parameter, bias)

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
                    self._cast_later(self.numbers[bias], parameter, bias)
            for parameter in layers:
                self.sink.free(self.numbers[prefix + parameter.name])

    def _cast_later(self, number: int, weight: Parameter, bias: str) -> None:
        """``bias`` has an element for each of the rows of its layer's ``weight``."""
        if self.itemsize != _UNPACKED_ITEMSIZE:
            self.biases.append((number, weight.shape[0], bias))

    def _pack_weight(self, parameter: Parameter, name: str, *, on_device: bool) -> None:
        rows, columns = parameter.shape[0], parameter.numel // parameter.shape[0]
        if self.quantization == "int8":
            self.sink.append(_packed_to_8_bits(rows, columns), name)
            return
        whole = 0 if on_device else self.itemsize
        self.sink.append(_packed_to_4_bits(rows * columns, whole, self._chip, self._first), name)
        self._first = False


@lru_cache(maxsize=256)
def _packed_to_8_bits(rows: int, columns: int) -> Recording:
    """bitsandbytes 0.50's int8 quantisation: a byte an element and an fp32 scale a row, made from an fp16 copy."""
    numel, out = rows * columns, Recording()
    allocate = partial(out.allocate, module=_OF_THE_WEIGHT)
    whole = allocate(2 * numel, _TEMPORARIES, "weight before packing")
    allocate(4 * rows, _WEIGHTS, "8-bit row scales")
    allocate(numel, _WEIGHTS, "8-bit weight")
    out.free(whole)
    return out


@lru_cache(maxsize=256)
def _packed_to_4_bits(numel: int, whole_itemsize: int, chip: tuple[int, int], first: bool) -> Recording:
    """bitsandbytes 0.50's NF4 with double quantisation on the device (functional.quantize_4bit).

    It keeps half a byte an element, a byte a block of 64, an fp32 scale a block of 256 of those, and small tables.
    ``whole_itemsize``: bytes an element of a weight that comes from the host and is there whole first, 0 where it is
    on the device. ``chip``: multiprocessors, and threads of each. With the ``first`` weight the library makes the
    table for 8-bit scales and keeps it.
    """
    out = Recording()
    allocate = partial(out.allocate, module=_OF_THE_WEIGHT)
    whole = allocate(numel * whole_itemsize, _TEMPORARIES, "weight before packing")
    blocks, mean = -(-numel // _NF4_BLOCK), []
    scales = allocate(4 * blocks, _TEMPORARIES, "4-bit scales")
    allocate(-(-numel // 2), _WEIGHTS, "4-bit weight")
    allocate(64, _WEIGHTS, "4-bit code book")
    sizes = allocate(64, _TEMPORARIES, "4-bit code book")
    largest = allocate(4, _TEMPORARIES, "4-bit code book")
    out.free(sizes)
    out.free(largest)
    allocate(4, _WEIGHTS, "4-bit scale offset")
    dims = {"sm_count": chip[0], "threads_per_sm": chip[1], "one": 1, "scales": blocks}
    for needed in (reduction_staging, reduction_semaphores):
        size = needed(dims, ("one",), ("scales",), True, 4)
        mean.append(allocate(size, _TEMPORARIES, "mean of the 4-bit scales"))
    for number in reversed(mean):
        out.free(number)
    centred = allocate(4 * blocks, _TEMPORARIES, "4-bit scales centred")
    if first:
        out.allocate(1024, _WEIGHTS, "8-bit code book")
    allocate(4 * -(-blocks // _NF4_NESTED_BLOCK), _WEIGHTS, "4-bit nested scales")
    allocate(blocks, _WEIGHTS, "4-bit packed scales")
    allocate(1024, _WEIGHTS, "4-bit scale code book")
    out.free(centred)
    out.free(scales)
    out.free(whole)
    return out
