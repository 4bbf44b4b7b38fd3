"""A model's tensors in the order in which its constructors make them on the device.

`Architecture` lists them as ``named_parameters`` does, a module's own before those of its submodules. Constructors
mostly make submodules first: gpt-oss' attention its sinks after its projections, BERT's language model head its
bias after the decoder, embeddings their buffers after their weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from trainmem.buckets import BUCKETS
from trainmem.model import Architecture, Buffer, Parameter
from trainmem.tape.frequencies import inverse_frequencies
from trainmem.tape.optimizers import Sink, Trainable

__all__ = ["Creation", "in_order"]

_WEIGHTS = BUCKETS.index("weights")
_TEMPORARIES = BUCKETS.index("temporaries")

_TIED_BIAS = "cls.predictions.bias"
"""BERT ties the bias of its head as well, to one that is not the projection's."""

_MADE_LAST = ("self_attn.sinks", _TIED_BIAS)
"""Parameters that a module makes after its submodules."""

_Named = TypeVar("_Named", Parameter, Trainable)


def in_order(tensors: Iterable[_Named]) -> list[_Named]:
    """Parameters of one block, or of all that is outside of blocks, with a module's own after its submodules'."""
    listed = list(tensors)
    order = [tensor for tensor in listed if not tensor.name.endswith(_MADE_LAST)]
    for late in listed:
        if late.name.endswith(_MADE_LAST):
            order.insert(_end(order, late.name), late)
    return order


class Creation:
    """Makes what is not in ``numbers`` yet (allocation numbers by name) and adds it there.

    ``on_host``: frequencies and positions are computed on the host, as where a model is filled module by module.
    """

    def __init__(
        self,
        sink: Sink,
        architecture: Architecture,
        itemsize: int,
        numbers: dict[str, int],
        *,
        on_host: bool = False,
    ) -> None:
        self.sink, self.architecture = sink, architecture
        self.itemsize, self.numbers, self.on_host = itemsize, numbers, on_host

    def body(self) -> None:
        """The model under the head: its parameters and buffers, then their first values."""
        model = self.architecture
        embedded = [buffer for buffer in model.buffers if buffer.rope_type is None]
        rotary = [b for b in model.buffers if b.rope_type and not b.name.endswith("original_inv_freq")]
        first: list[Parameter | Buffer] = [*in_order(model.embeddings)]
        for buffer in embedded:
            first.insert(_end(first, buffer.name), buffer)
        self._make("", first)
        blocks = {kind: in_order(parameters) for kind, parameters in model.blocks.items()}
        sizes = {kind: [p.numel * self.itemsize for p in block] for kind, block in blocks.items()}
        for index, kind in enumerate(model.layer_kinds):
            self._make_block(f"layers.{index}.", blocks[kind], sizes[kind])
        self._make("", in_order(model.final))
        for buffer in rotary:
            self._rotary_buffers(buffer)
        if not self.on_host:
            self._first_values(embedded, rotary)

    def head(self) -> None:
        """The head, whose weight gives way to the embedding's where they are tied."""
        model = self.architecture
        if not model.tied:
            self._make("", in_order(model.head))
            return
        projection = next(parameter for parameter in model.head if parameter.kind == "head")
        bias = next((parameter for parameter in model.head if parameter.name == _TIED_BIAS), None)
        before, after = _divided(in_order(model.head), projection)
        self._make("", before)
        size = self.itemsize * projection.numel
        weight = self.sink.allocate(size, _TEMPORARIES, "head before tying", projection.name)
        own = self._head_bias(bias) if bias else -1
        self._make("", after)
        self.sink.free(weight)
        if bias:
            # each of the two is padded to the vocabulary, which copies it (_adjust_bias in modeling_utils.py)
            padded = self._head_bias(bias)
            self.sink.free(own)
            self.sink.free(padded)
            first = self.numbers[bias.name]
            self._allocate(bias.name, self.itemsize * bias.numel, "parameter")
            self.sink.free(first)

    def _head_bias(self, bias: Parameter) -> int:
        """A bias of the projection itself, until the tied one takes its place."""
        return self.sink.allocate(self.itemsize * bias.numel, _TEMPORARIES, "head before tying", bias.name)

    def _make_block(self, prefix: str, block: Sequence[Parameter], sizes: Sequence[int]) -> None:
        """All of a block, or nothing where it was made when it was packed."""
        names = [prefix + parameter.name for parameter in block]
        if names and names[0] not in self.numbers:
            made = self.sink.allocate_all(sizes, _WEIGHTS, ["parameter"] * len(names), names)
            self.numbers.update(zip(names, made, strict=True))

    def _make(self, prefix: str, order: Sequence[Parameter | Buffer]) -> None:
        for tensor in order:
            name = prefix + tensor.name
            if isinstance(tensor, Buffer):
                # a Python number becomes a tensor of the default dtype, which is that of the weights
                self._allocate(name, tensor.size_bytes if tensor.shape else self.itemsize, "buffer")
            elif name not in self.numbers:
                self._allocate(name, tensor.numel * self.itemsize, "parameter")

    def _allocate(self, name: str, size_bytes: int, op: str) -> None:
        self.numbers[name] = self.sink.allocate(size_bytes, _WEIGHTS, op, name)

    def _rotary_buffers(self, buffer: Buffer) -> None:
        """Frequencies and the copy of them that scalings return to."""
        if self.on_host:
            self._allocate(buffer.name, buffer.size_bytes, "buffer")
        else:
            self.numbers[buffer.name] = self._frequencies(buffer, _WEIGHTS)
        self._allocate(_original(buffer.name), buffer.size_bytes, "buffer")

    def _first_values(self, embedded: Iterable[Buffer], rotary: Iterable[Buffer]) -> None:
        """``_init_weights`` computes positions and frequencies again, and copies them to their buffers."""
        for buffer in embedded:
            if buffer.name.endswith("position_ids"):
                self.sink.free(self.sink.allocate(buffer.size_bytes, _TEMPORARIES, "positions", buffer.name))
        before = -1
        for buffer in rotary:
            frequencies = self._frequencies(buffer, _TEMPORARIES)
            # of one name for all kinds of blocks: the last ones live until they are there
            self.sink.free(before)
            before = frequencies
        self.sink.free(before)

    def _frequencies(self, buffer: Buffer, bucket: int) -> int:
        """Computes the frequencies of a buffer; their allocation."""
        events = inverse_frequencies(buffer.rope_type or "default", buffer.shape[0])
        freed = {~event for event in events if event < 0}
        numbers: list[int] = []
        result = -1
        for event in events:
            if event < 0:
                self.sink.free(numbers[~event])
            elif len(numbers) in freed:
                numbers.append(self.sink.allocate(event, _TEMPORARIES, "frequencies", buffer.name))
            else:
                op = "buffer" if bucket == _WEIGHTS else "frequencies"
                result = self.sink.allocate(event, bucket, op, buffer.name)
                numbers.append(result)
        return result


def _end(order: Sequence[Parameter | Buffer | Trainable], name: str) -> int:
    """Behind the tensors that are inside the module of ``name``, or behind all where none is."""
    module = name.rpartition(".")[0] + "."
    return max(
        (place + 1 for place, each in enumerate(order) if each.name.startswith(module)), default=len(order)
    )


def _divided(order: list[Parameter], at: Parameter) -> tuple[list[Parameter], list[Parameter]]:
    """What comes before ``at``, and what comes after it."""
    place = order.index(at)
    return order[:place], order[place + 1 :]


def _original(name: str) -> str:
    return name.removesuffix("inv_freq") + "original_inv_freq"
