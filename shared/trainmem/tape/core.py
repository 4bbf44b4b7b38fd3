"""A tiny autograd that runs on byte counts instead of numbers.

It keeps what decides memory in PyTorch: which tensors share a memory, when the last reference to a memory
dies, what each node saves, and the order in which the engine runs nodes and sums gradients. Python's own
reference counting plays the part of `intrusive_ptr`, so a model written here in the shape of its real forward
frees its tensors at the same instants.

Sizes stay symbolic: a shape is a tuple of dimension names ("b", "s", "h"), so one recorded program serves every
batch, length and width (`trainmem.tape.program`).

Source of the rules: torch/csrc/autograd/{engine,input_buffer,saved_variable}.cpp,
functions/accumulate_grad.h, torch/utils/checkpoint.py; compared event by event with allocator traces recorded on
an H200 (tests/data/captures).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from trainmem.tape.engine import ACCUMULATE_SEQ
from trainmem.tape.ledger import Ledger
from trainmem.tape.tensor import (
    BUCKET,
    BackwardFn,
    CheckpointFrame,
    Gradients,
    Holder,
    Memory,
    Node,
    Shape,
    Tensor,
)

__all__ = ["StopRecompute", "Tape"]

_TEMPORARIES, _ACTIVATIONS = BUCKET["temporaries"], BUCKET["activations"]
_LEAF = "leaf"


class StopRecompute(Exception):
    """Everything that the checkpointed block had saved has been recomputed (early stop)."""


class Tape(Ledger):
    """Records the allocations and frees of forward and backward.

    ``autocast``: bytes per element of matrix products under autocast, 0 when off.
    """

    def __init__(self) -> None:
        super().__init__()
        self.autocast = 0
        self.grad_enabled = True
        self.block = 0
        self.gradients: dict[str, int] = {}
        """By parameter, the key of the gradient that it keeps. The run lets go of it all the same."""
        self.kept_owns = False
        """Whether keeping a gradient decided where others were summed."""
        self.accumulating = False
        self.wide_gradients = False
        self.many_rows = False
        self.grouped_products = "kernel"
        """How a mixture's grouped products run: one "kernel", cuBLAS "products", or transformers' "fallback"."""
        self.frequency_checks = 0
        """How often a step's rotary embedding compares the sequence with a length that frequencies are for."""
        self.leaf: Node | None = None
        """The node of an activation that was asked for gradients as if it were a parameter."""
        self.graph_attributes: list[Tensor] = []
        """What autograd contexts hold beside saved tensors, until the loss lets go of the graph."""
        self.on_gradient: Callable[[str, Tensor], None] | None = None
        """Takes every gradient of a parameter in place of keeping it."""
        self._seq = 0
        self._cast_cache: dict[str, Tensor] = {}
        self._cast_in: dict[str, int] = {}
        """In which block each of them was made last."""
        self._frame: CheckpointFrame | None = None
        self._recomputing: CheckpointFrame | None = None

    def release(self) -> None:
        """Let go of the graph, too."""
        super().release()
        self.on_gradient, self.leaf = None, None
        self.gradients.clear()
        self._cast_cache.clear()

    # Scopes

    def module(self, name: str) -> _Scope:
        """Name the module that is running; names nest."""
        prefix = self.prefix
        return _Scope(self, "prefix", f"{prefix[:-2]}.{name}: " if prefix else f"{name}: ")

    def entering(self, run: str, block: int) -> _Scope:
        """A block's run begins, "forward" or "again"; the scope of its name."""
        self.block = block
        self.boundary((run, block))
        return self.module(f"layers.{block}")

    def filling(self, bucket: str) -> _Scope:
        """Allocations count as this bucket unless they are saved for backward by another."""
        return _Scope(self, "bucket", BUCKET[bucket])

    def no_grad(self) -> _Scope:
        """Build no graph."""
        return _Scope(self, "grad_enabled", False)

    @contextmanager
    def autocasting(self, itemsize: int) -> Iterator[None]:
        """Autocast with its cache of cast weights, cleared on the way out."""
        before, self.autocast = self.autocast, itemsize
        try:
            yield
        finally:
            self.autocast = before
            if not before:
                self._cast_cache.clear()

    # Building the graph

    def wants_grad(self, *inputs: Tensor | None) -> bool:
        """Whether an operation on these builds a node."""
        if self.grad_enabled:
            for tensor in inputs:
                if tensor is not None and tensor.node is not None:
                    return True
        return False

    def node(
        self, name: str, inputs: Sequence[Tensor | None], backward: BackwardFn, *, outputs: int = 1
    ) -> Node:
        """A backward node with edges to the inputs that want gradients."""
        edges: list[tuple[Node, int] | None] = []
        for tensor in inputs:
            before = None if tensor is None else tensor.node
            edges.append(None if before is None else (before, tensor.slot))  # type: ignore[union-attr]
        self._seq += 1
        return Node(self._seq, name, edges, backward, outputs, self.block, self.bucket, self.prefix)

    def save(self, node: Node | None, *tensors: Tensor | None) -> None:
        """Keep tensors for backward, or, inside a checkpoint, only the promise to recompute them."""
        if node is None:
            return
        recomputing, frame = self._recomputing, self._frame
        for tensor in tensors:
            if tensor is None:
                continue
            if recomputing is not None:
                self._fill(recomputing, tensor)
            elif frame is not None:
                holder = Holder(frame)
                frame.holders.append(weakref.ref(holder))
                node.saved.append(holder)
                continue
            else:
                self._mark_saved(tensor)
            if tensor.memory is not None:
                node.saved.append(tensor.memory)

    def _fill(self, frame: CheckpointFrame, tensor: Tensor) -> None:
        """Keep the promise that comes next; the last one ends the second run."""
        index, holders = frame.seen, frame.holders
        frame.seen = index + 1
        if index < len(holders):
            holder = holders[index]()
            if holder is not None:
                holder.memory = tensor.memory
                self._mark_saved(tensor)
        if index + 1 == len(holders):
            raise StopRecompute

    def keep_with_graph(self, node: Node, tensor: Tensor) -> None:
        """Keep a tensor as long as the graph: to the end of backward, or of the recomputation it is part of."""
        if self._recomputing is None:
            self.graph_attributes.append(tensor.alias())
            self._mark_saved(tensor)
        elif tensor.memory is not None:
            node.saved.append(tensor.memory)

    def end_forward(self) -> None:
        """What outlives forward, such as a mask that checkpoints hand to their second run, is kept for backward."""
        codes, bucket_of = set(self.codes), self.bucket_of
        for key, bucket in enumerate(bucket_of):
            if bucket == _TEMPORARIES and ~key not in codes:
                bucket_of[key] = _ACTIVATIONS

    def _mark_saved(self, tensor: Tensor) -> None:
        memory = tensor.memory
        if memory is not None and self.bucket_of[memory.key] == _TEMPORARIES:
            self.bucket_of[memory.key] = _ACTIVATIONS

    def op(
        self,
        name: str,
        inputs: Sequence[Tensor | None],
        shape: Shape,
        itemsize: int,
        backward: BackwardFn,
        *,
        saves: Sequence[Tensor | None] = (),
        saves_output: bool = False,
        costly: bool = False,
        kernel: Callable[[], object] | None = None,
    ) -> Tensor:
        """An operation with one fresh output. Inputs are saved before the kernel runs, the output after it.

        ``costly``: selective checkpoints keep its result. ``kernel``: what running it takes beside its output.
        """
        node = None
        if self.grad_enabled:
            for tensor in inputs:
                if tensor is not None and tensor.node is not None:
                    node = self.node(name, inputs, backward)
                    break
        if saves and node is not None:
            self.save(node, *saves)
        kept = self.kept() if costly else None
        out = self.alloc(shape, itemsize, name) if kept is None else kept[0].alias()
        if kernel is not None and kept is None:
            kernel()
        if costly and kept is None:
            self.keep(out)
        del kept
        if node is not None:
            out.node = node
            if saves_output:
                self.save(node, out)
        return out

    def view(self, tensor: Tensor, shape: Shape, name: str = "view") -> Tensor:
        """Another shape over the same storage; its gradient is viewed back."""
        out = Tensor(tensor.memory, shape, tensor.itemsize, view=True)
        if self.grad_enabled and tensor.node is not None:
            back = tensor.shape

            def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
                grad = grads[0]
                assert grad is not None
                return [Tensor(grad.memory, back, grad.itemsize, view=True)]

            out.node = self.node(name, (tensor,), backward)
        return out

    def parameter(self, name: str, shape: Shape, itemsize: int, *, trainable: bool = True) -> Tensor:
        """A parameter; its memory belongs to the model, not to the step."""
        tensor = Tensor(None, shape, itemsize)
        if trainable:
            tensor.node = Node(ACCUMULATE_SEQ, name, [], None, 1)
        return tensor

    def cast_weight(self, name: str, weight: Tensor, itemsize: int) -> Tensor:
        """Autocast's 16-bit copy of an fp32 weight: cached when the weight is a trainable leaf."""
        if weight.itemsize == itemsize:
            return weight
        cacheable = weight.node is not None and weight.node.seq == ACCUMULATE_SEQ
        if cacheable and name in self._cast_cache:
            return self._cast_cache[name]
        with self.filling("cast_cache" if weight.memory is None else "temporaries"):
            out = self._copied(weight, itemsize)
        if out.node is not None:
            out.node.bucket = self.bucket  # the gradient's copy belongs to the product that uses the weight
        if cacheable:
            self._cast_cache[name], self._cast_in[name] = out, self.block
        return out

    def cast(self, tensor: Tensor, itemsize: int) -> Tensor:
        """A copy in another dtype; its gradient is cast back. Autocast keeps the one of the graph's leaf."""
        if tensor.itemsize == itemsize:
            return tensor
        if self.leaf is None or tensor.node is not self.leaf or itemsize != self.autocast:
            return self._copied(tensor, itemsize)
        if _LEAF not in self._cast_cache:
            self._cast_cache[_LEAF], self._cast_in[_LEAF] = self._copied(tensor, itemsize), self.block
        return self._cast_cache[_LEAF]

    def recast(self, tensor: Tensor) -> Tensor:
        """A copy in another dtype of the same size (fp16 and bf16); its gradient is cast back."""
        return self._copied(tensor, tensor.itemsize)

    def converted(self, tensor: Tensor, itemsize: int) -> Tensor:
        """``tensor.to(dtype)`` in a layer's own code, of which autocast keeps nothing."""
        return tensor if tensor.itemsize == itemsize else self._copied(tensor, itemsize)

    def _copied(self, tensor: Tensor, itemsize: int) -> Tensor:
        back = tensor.itemsize

        def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
            grad = grads[0]
            assert grad is not None
            return [tape.alloc_like(grad, grad.shape, back, "cast backward")]

        return self.op("cast", [tensor], tensor.shape, itemsize, backward)

    # Checkpointing

    @property
    def recomputing(self) -> bool:
        """Whether a checkpoint's second run is under way."""
        return self._recomputing is not None

    def checkpoint(
        self,
        function: Callable[..., Tensor],
        *arguments: Any,
        selective: bool = False,
        is_segment: bool = False,
    ) -> Tensor:
        """Run ``function`` keeping only its arguments; backward runs it again (use_reentrant=False).

        ``is_segment``: it enters several blocks, whose parts are cut as `PartLabel` says.
        ``selective``: the results of ops that ask for it are kept too, and not computed again
        (create_selective_checkpoint_contexts).
        """
        frame = CheckpointFrame(function, arguments, self.autocast, selective, is_segment, self.prefix)
        for argument in arguments:
            if isinstance(argument, Tensor):
                self._mark_saved(argument)
        before, self._frame = self._frame, frame
        try:
            return function(*arguments)
        finally:
            self._frame = before

    @property
    def intercepted(self) -> bool:
        """Whether a selective checkpoint's dispatch mode sees every op, now or in its second run."""
        frame = self._recomputing or self._frame
        return frame is not None and frame.selective

    def kept(self) -> tuple[Tensor, ...] | None:
        """In the second run of a selective checkpoint, the next kept results; else None: compute them."""
        frame = self._recomputing
        if frame is None or not frame.selective:
            return None
        return frame.outputs.pop(0)

    def keep(self, *results: Tensor) -> None:
        """In the first run of a selective checkpoint, keep these results for the second."""
        if self._frame is not None and self._frame.selective:
            self._frame.outputs.append(tuple(result.alias() for result in results))
            for result in results:
                self._mark_saved(result)

    def unpack(self, saved: Holder) -> Memory | None:
        """What was promised in place of a memory, for which the block runs again if it has not yet."""
        frame = saved.frame
        if not frame.done:
            self._recompute(frame)
        elif frame.is_segment and self.boundaries[-1][2][0] == "backward":
            self.boundary(("after", self.block))
        memory, saved.memory = saved.memory, None
        return memory

    def _recompute(self, frame: CheckpointFrame) -> None:
        frame.done = True
        before = (self._recomputing, self.grad_enabled, self._frame, self.prefix, self.bucket)
        self._recomputing, self.grad_enabled, self._frame = frame, True, None
        self.bucket, self.prefix = _TEMPORARIES, frame.prefix
        function = frame.function
        assert function is not None
        try:
            with self._second_run(frame):
                function(*frame.arguments)
        except StopRecompute:
            pass
        self._recomputing, self.grad_enabled, self._frame, self.prefix, self.bucket = before

    @contextmanager
    def _second_run(self, frame: CheckpointFrame) -> Iterator[None]:
        """Under the autocast of the first run, whose copies of weights go with it: block by block of a segment."""
        block, before = self.block, self.autocast
        self.autocast = frame.autocast or before
        try:
            yield
        finally:
            self.autocast = before
            for name in list(self._cast_cache) if frame.autocast and not before else ():
                if frame.is_segment and self.boundaries[-1][2] != ("cleared", self._cast_in[name]):
                    self.boundary(("cleared", self._cast_in[name]))
                del self._cast_cache[name]
            if frame.is_segment:
                self.block = block
                self.boundary(("after", block))


class _Scope:
    """Within it, something of the tape has another value."""

    __slots__ = ("before", "name", "tape", "value")

    def __init__(self, tape: Tape, name: str, value: object) -> None:
        self.tape = tape
        self.name = name
        self.value = value

    def __enter__(self) -> None:
        self.before = getattr(self.tape, self.name)
        setattr(self.tape, self.name, self.value)

    def __exit__(self, *raised: object) -> None:
        setattr(self.tape, self.name, self.before)
