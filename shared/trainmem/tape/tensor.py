"""What a graph is made of: tensors that own byte counts, and the nodes of backward that hold on to them.

A tensor is one handle on a memory, as one ``at::Tensor`` is on its storage; when the last handle dies, so does the
memory. Python's own reference counting plays the part of ``intrusive_ptr``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from trainmem.buckets import BUCKETS
from trainmem.tape import kernels

if TYPE_CHECKING:
    from trainmem.tape.core import Tape

__all__ = [
    "BUCKET",
    "BackwardFn",
    "CheckpointFrame",
    "Gradients",
    "Holder",
    "Memory",
    "Node",
    "Pending",
    "Shape",
    "SizeSpec",
    "Tensor",
    "sum_to",
]

Shape: TypeAlias = tuple[str, ...]
SizeSpec: TypeAlias = tuple[Any, ...]
"""(bytes per element, dimension names...) or (function of the dimensions, arguments...)."""

Gradients: TypeAlias = list[Any]
BackwardFn: TypeAlias = Callable[["Tape", Gradients, Sequence[bool]], Gradients]

BUCKET: dict[str, int] = {name: index for index, name in enumerate(BUCKETS)}


class Memory:
    """What one allocation gave, freed when nothing refers to it any more.

    ``codes``: of its tape, which takes ``~key`` then.
    """

    __slots__ = ("codes", "key")

    def __init__(self, codes: list[int], key: int) -> None:
        self.codes = codes
        self.key = key

    def __del__(self) -> None:
        self.codes.append(~self.key)


class Tensor:
    """A shape, bytes per element, a memory, and the node that made it; one handle, as one `at::Tensor`.

    ``memory``: None where it is not the step's. A tensor lets go of it before its node: Python clears slots in the
    order of their names.
    ``apart``: tokens lie column by column in memory, so that seeing them as rows of a matrix copies them.
    """

    __slots__ = ("apart", "itemsize", "memory", "node", "shape", "slot", "view")

    def __init__(self, memory: Memory | None, shape: Shape, itemsize: int, *, view: bool = False) -> None:
        self.memory = memory
        self.shape = shape
        self.itemsize = itemsize
        self.node: Node | None = None
        self.slot = 0
        self.view = view
        self.apart = False

    def alias(self) -> Tensor:
        """Another tensor over the same memory, without a node."""
        out = Tensor(self.memory, self.shape, self.itemsize, view=self.view)
        out.apart = self.apart
        return out


class Node:
    """A step of the backward graph; without a ``backward``, it keeps the gradient of the parameter that it names."""

    __slots__ = (
        "backward", "block", "bucket", "edges", "gradients", "inputs", "name", "pending", "prefix", "saved", "seq",
    )  # fmt: skip

    def __init__(
        self,
        seq: int,
        name: str,
        edges: list[tuple[Node, int] | None],
        backward: BackwardFn | None,
        inputs: int,
        block: int = 0,
        bucket: int = BUCKET["temporaries"],
        prefix: str = "",
    ) -> None:
        self.seq = seq
        self.name = name
        self.edges = edges
        self.backward = backward
        self.inputs = inputs
        self.saved: list[Memory | Holder] = []
        self.block = block
        self.bucket = bucket
        self.prefix = prefix
        self.gradients: Gradients | None = None
        """Of its outputs, as the engine has them so far."""
        self.pending = -1
        """How many edges to it the engine has still to go along; -1 before it has found the node."""


class Holder:
    """What a checkpointed node keeps in place of a memory: a promise to recompute it."""

    __slots__ = ("__weakref__", "frame", "memory")

    def __init__(self, frame: CheckpointFrame) -> None:
        self.frame = frame
        self.memory: Memory | None = None


class CheckpointFrame:
    """One checkpointed call: how to run it again, and the holders to fill in order."""

    __slots__ = (
        "arguments",
        "autocast",
        "done",
        "function",
        "holders",
        "is_segment",
        "outputs",
        "prefix",
        "seen",
        "selective",
    )

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        autocast: int,
        selective: bool,
        is_segment: bool,
        prefix: str,
    ) -> None:
        self.function: Callable[..., Any] | None = function
        self.arguments = arguments
        self.autocast = autocast
        self.selective = selective
        self.is_segment = is_segment
        """Whether it enters several blocks."""
        self.prefix = prefix
        """Of the module in which the call was made, and is made again."""
        self.outputs: list[tuple[Tensor, ...]] = []
        """Selective: results of matrix products and attention, kept by the first run for the second."""
        self.holders: list[weakref.ref[Holder]] = []  # weak: a holder keeps its frame alive
        self.done = False
        self.seen = 0


class Pending:
    """A gradient that must still be summed to its input's shape, then cast to its dtype.

    The engine does both after the node has run and its saved tensors are unpacked no more
    (torch/csrc/autograd/engine.cpp, validate_outputs).
    """

    __slots__ = ("gradient", "inputs", "itemsize", "outputs")

    def __init__(self, gradient: Tensor, outputs: Shape, inputs: Shape, itemsize: int) -> None:
        self.gradient: Tensor | None = gradient
        self.outputs = outputs
        self.inputs = inputs
        self.itemsize = itemsize

    def settle(self, tape: Tape) -> Tensor:
        """The gradient as its input wants it."""
        gradient, self.gradient = self.gradient, None
        assert gradient is not None
        if self.inputs:
            gradient = sum_to(tape, gradient, self.outputs, self.inputs)
        if gradient.itemsize != self.itemsize:
            gradient = tape.alloc_like(gradient, self.outputs, self.itemsize, "gradient cast")
        return gradient


def sum_to(tape: Tape, grad: Tensor, outputs: Shape, inputs: Shape) -> Tensor:
    """The sum of a gradient over ``inputs``, with the staging memory of a reduction split over blocks."""
    fastest = inputs == grad.shape[-1:]
    out = tape.alloc(outputs, grad.itemsize, "sum")
    rule = (outputs, inputs, fastest, grad.itemsize)
    staging = tape.scratch((kernels.reduction_staging, *rule), "sum staging")
    semaphores = tape.scratch((kernels.reduction_semaphores, *rule), "sum semaphores")
    del semaphores
    del staging
    return out
