"""A tiny autograd that runs on byte counts instead of numbers.

It keeps what decides memory in PyTorch: which tensors share a storage, when the last reference to a storage
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

import heapq
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from trainmem.buckets import BUCKETS
from trainmem.tape import kernels

__all__ = [
    "BUCKET",
    "LOADED_KEYS",
    "Gradients",
    "Node",
    "Shape",
    "SizeSpec",
    "StopRecompute",
    "Tape",
    "Tensor",
]

Shape: TypeAlias = tuple[str, ...]
SizeSpec: TypeAlias = tuple[Any, ...]
"""(bytes per element, dimension names...) or (function of the dimensions, arguments...)."""

BUCKET: dict[str, int] = {name: index for index, name in enumerate(BUCKETS)}
_TEMPORARIES, _ACTIVATIONS, _LOGITS = (BUCKET[name] for name in ("temporaries", "activations", "logits"))


class StopRecompute(Exception):
    """Everything that the checkpointed block had saved has been recomputed (early stop)."""


class Tensor:
    """A shape, bytes per element, a storage, and the node that made it; one handle, as one `at::Tensor`.

    ``storage``: the key of its memory, which is freed when the last tensor that shares it dies; None where that
    is not the step's.
    ``apart``: tokens lie column by column in memory, so that seeing them as rows of a matrix copies them.
    """

    __slots__ = ("apart", "itemsize", "node", "requires_grad", "shape", "slot", "storage", "tape", "view")

    def __init__(
        self,
        tape: Tape,
        storage: int | None,
        shape: Shape,
        itemsize: int,
        node: Node | None = None,
        slot: int = 0,
        view: bool = False,
    ) -> None:
        self.tape = tape
        self.storage = storage
        if storage is not None:
            tape.owners[storage] += 1
        self.shape = shape
        self.itemsize = itemsize
        self.node = node
        self.slot = slot
        self.requires_grad = node is not None
        self.view = view
        self.apart = False

    def __del__(self) -> None:
        storage = self.storage
        if storage is not None:
            tape = self.tape
            owners = tape.owners[storage] = tape.owners[storage] - 1
            if not owners:
                tape.codes.append(~storage)

    def alias(self) -> Tensor:
        """Another tensor over the same memory, without a node."""
        out = Tensor(self.tape, self.storage, self.shape, self.itemsize, None, 0, self.view)
        out.apart = self.apart
        return out


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


Gradients: TypeAlias = list[Any]
BackwardFn: TypeAlias = Callable[["Tape", Gradients, Sequence[bool]], Gradients]


class Holder:
    """What a checkpointed node keeps in place of a tensor: a promise to recompute it."""

    __slots__ = ("__weakref__", "frame", "tensor")

    def __init__(self, frame: CheckpointFrame) -> None:
        self.frame = frame
        self.tensor: Tensor | None = None


class CheckpointFrame:
    """One checkpointed call: how to run it again, and the holders to fill in order."""

    __slots__ = ("arguments", "autocast", "done", "function", "holders", "outputs", "seen", "selective")

    def __init__(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], autocast: int, selective: bool
    ) -> None:
        self.function: Callable[..., Any] | None = function
        self.arguments = arguments
        self.autocast = autocast
        self.selective = selective
        self.outputs: list[tuple[Tensor, ...]] = []
        """Selective: results of matrix products and attention, kept by the first run for the second."""
        self.holders: list[weakref.ref[Holder]] = []  # weak: a holder keeps its frame alive
        self.done = False
        self.seen = 0


class Node:
    """A step of the backward graph."""

    __slots__ = (
        "backward", "block", "bucket", "edges", "gradients", "inputs", "module", "name", "pending", "saved", "seq",
    )  # fmt: skip

    def __init__(
        self,
        seq: int,
        name: str,
        edges: list[tuple[Node, int] | None],
        backward: BackwardFn,
        inputs: int,
        block: int = 0,
        bucket: int = _TEMPORARIES,
        module: str = "",
    ) -> None:
        self.seq = seq
        self.name = name
        self.edges = edges
        self.backward = backward
        self.inputs = inputs
        self.saved: list[Tensor | Holder] = []
        self.block = block
        self.bucket = bucket
        self.module = module
        self.gradients: Gradients | None = None
        """Of its outputs, as the engine has them so far."""
        self.pending = -1
        """How many edges to it the engine has still to go along; -1 before it has found the node."""


_ACCUMULATE_SEQ = 1 << 60
LOADED_KEYS = 1 << 40
_LEAF = "leaf"


class Tape:
    """Records the allocations and frees of forward and backward.

    ``autocast``: bytes per element of matrix products under autocast, 0 when off.
    ``codes``: a number >= 0 is the key of what is allocated, ``~key`` frees it; keys from `LOADED_KEYS` on count
    ``loaded``, parameters that lay in memory before. ``boundaries``: (how many codes come before, label).
    """

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.loaded: list[str] = []
        self.boundaries: list[tuple[int, tuple[str, int]]] = []
        self.owners: list[int] = []
        """By key: how many tensors share the memory."""
        self.size_of: list[SizeSpec] = []
        self.bucket_of: list[int] = []
        self.stream_of: dict[int, int] = {}
        self.name_of: list[str] = []
        self.once: set[int] = set()
        self.autocast = 0
        self.grad_enabled = True
        self.bucket = _TEMPORARIES
        self.block = 0
        self.gradients: dict[str, Tensor] = {}
        self.accumulating = False
        # Dimensions of one element, which views need no copy to cross.
        self.ones: frozenset[str] = frozenset()
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
        self._module = ""
        self._prefix = ""
        self._stream = 0
        self.on_gradient: Callable[[str, Tensor], None] | None = None
        """Takes every gradient of a parameter in place of keeping it."""
        self._op = ""
        self._seq = 0
        self._cast_cache: dict[str, Tensor] = {}
        self._frame: CheckpointFrame | None = None
        self._recomputing: CheckpointFrame | None = None
        self._once_seen: dict[str, Tensor] = {}
        self.thread = "forward"

    # Allocation

    def alloc(self, shape: Shape, itemsize: int, op: str = "", bucket: int | None = None) -> Tensor:
        """A new tensor in memory of its own."""
        return Tensor(self, self._storage((itemsize, *shape), op, bucket), shape, itemsize)

    def alloc_like(self, tensor: Tensor, shape: Shape, itemsize: int, op: str) -> Tensor:
        """A new tensor in the memory order of another, as pointwise kernels make their results."""
        out = self.alloc(shape, itemsize, op)
        out.apart = tensor.apart
        return out

    def scratch(self, size: SizeSpec, op: str) -> Tensor:
        """Memory of a kernel's own, freed when the caller drops it."""
        return Tensor(self, self._storage(size, op, None), (), 1)

    def _storage(self, size: SizeSpec, op: str, bucket: int | None) -> int:
        key = len(self.size_of)
        self.size_of.append(size)
        self.bucket_of.append(self.bucket if bucket is None else bucket)
        if self._stream:
            self.stream_of[key] = self._stream
        self.name_of.append(self._prefix + (op or self._op))
        self.codes.append(key)
        self.owners.append(0)
        return key

    def on_stream(self, stream: int, size: SizeSpec, op: str, bucket: int) -> Tensor:
        """Memory of another stream's pool."""
        self._stream = stream
        storage = self._storage(size, op, bucket)
        self._stream = 0
        return Tensor(self, storage, (), 1)

    def workspace(self, kind: str, size: SizeSpec) -> None:
        """A library's workspace: allocated at first use in a thread, never freed."""
        where = f"{self.thread}.{kind}"
        if where not in self._once_seen:
            storage = self._storage(size, kind, BUCKET["workspace"])
            self.once.add(storage)
            self._once_seen[where] = Tensor(self, storage, (), 1)

    def replace_loaded(self, name: str, size: SizeSpec) -> None:
        """A parameter takes new memory at its first use (``parameter.data = ...``), and its old memory dies."""
        if name not in self._once_seen:
            storage = self._storage(size, "parameter", BUCKET["weights"])
            self.once.add(storage)
            self._once_seen[name] = Tensor(self, storage, (), 1)
            self.codes.append(~(LOADED_KEYS + len(self.loaded)))
            self.loaded.append(name)

    def boundary(self, label: tuple[str, int]) -> None:
        """What follows belongs to another part of the step."""
        self.boundaries.append((len(self.codes), label))

    def release(self) -> None:
        """Let go of what was recorded: tensors know their tape, so that all of it would wait for the collector."""
        self.on_gradient, self.leaf = None, None
        for tensors in (self.gradients, self._once_seen, self._cast_cache):
            tensors.clear()
        self.stream_of.clear()
        for column in (self.codes, self.size_of, self.bucket_of, self.name_of):
            column.clear()

    # Scopes

    def module(self, name: str) -> _Module:
        """Name the module that is running; names nest."""
        return _Module(self, f"{self._module}.{name}" if self._module else name)

    def enter(self, module: str) -> str:
        """Go over to a module by its whole name; answers that of the last."""
        before, self._module = self._module, module
        self._prefix = f"{module}: " if module else ""
        return before

    @contextmanager
    def filling(self, bucket: str) -> Iterator[None]:
        """Allocations count as this bucket unless they are saved for backward by another."""
        before, self.bucket = self.bucket, BUCKET[bucket]
        try:
            yield
        finally:
            self.bucket = before

    @contextmanager
    def no_grad(self) -> Iterator[None]:
        """Build no graph."""
        before, self.grad_enabled = self.grad_enabled, False
        try:
            yield
        finally:
            self.grad_enabled = before

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
                if tensor is not None and tensor.requires_grad:
                    return True
        return False

    def node(
        self, name: str, inputs: Sequence[Tensor | None], backward: BackwardFn, *, outputs: int = 1
    ) -> Node:
        """A backward node with edges to the inputs that want gradients."""
        edges: list[tuple[Node, int] | None] = [
            (t.node, t.slot) if t is not None and t.node is not None else None for t in inputs
        ]
        self._seq += 1
        return Node(self._seq, name, edges, backward, outputs, self.block, self.bucket, self._module)

    def save(self, node: Node | None, *tensors: Tensor | None) -> None:
        """Keep tensors for backward, or, inside a checkpoint, only the promise to recompute them."""
        if node is None:
            return
        recomputing, frame = self._recomputing, self._frame
        for tensor in tensors:
            if tensor is None:
                continue
            if recomputing is not None:
                index = recomputing.seen
                recomputing.seen += 1
                if index < len(recomputing.holders):
                    holder = recomputing.holders[index]()
                    if holder is not None:
                        holder.tensor = tensor.alias()
                        self._mark_saved(tensor)
                    del holder
                if recomputing.seen == len(recomputing.holders):
                    raise StopRecompute
                node.saved.append(tensor.alias())
            elif frame is not None:
                holder = Holder(frame)
                frame.holders.append(weakref.ref(holder))
                node.saved.append(holder)
            else:
                node.saved.append(tensor.alias())
                self._mark_saved(tensor)

    def keep_with_graph(self, node: Node, tensor: Tensor) -> None:
        """Keep a tensor as long as the graph: to the end of backward, or of the recomputation it is part of."""
        if self._recomputing is None:
            self.graph_attributes.append(tensor.alias())
            self._mark_saved(tensor)
        else:
            node.saved.append(tensor.alias())

    def end_forward(self) -> None:
        """What outlives forward, such as a mask that checkpoints hand to their second run, is kept for backward."""
        freed = {~code for code in self.codes if code < 0}
        for key, bucket in enumerate(self.bucket_of):
            if bucket == _TEMPORARIES and key not in freed:
                self.bucket_of[key] = _ACTIVATIONS

    def _mark_saved(self, tensor: Tensor) -> None:
        storage = tensor.storage
        if storage is not None and self.bucket_of[storage] == _TEMPORARIES:
            self.bucket_of[storage] = _ACTIVATIONS

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
        self._op = name
        node = self.node(name, inputs, backward) if self.wants_grad(*inputs) else None
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
            out.node, out.requires_grad = node, True
            if saves_output:
                self.save(node, out)
        return out

    def view(self, tensor: Tensor, shape: Shape, name: str = "view") -> Tensor:
        """Another shape over the same storage; its gradient is viewed back."""
        out = Tensor(self, tensor.storage, shape, tensor.itemsize, view=True)
        if self.wants_grad(tensor):
            back = tensor.shape

            def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
                grad = grads[0]
                assert grad is not None
                return [Tensor(tape, grad.storage, back, grad.itemsize, view=True)]

            out.node, out.requires_grad = self.node(name, [tensor], backward), True
        return out

    def parameter(self, name: str, shape: Shape, itemsize: int, *, trainable: bool = True) -> Tensor:
        """A parameter; its memory belongs to the model, not to the step."""
        tensor = Tensor(self, None, shape, itemsize)
        if trainable:
            tensor.node = Node(_ACCUMULATE_SEQ, "AccumulateGrad", [], _accumulate(name), 1)
            tensor.requires_grad = True
        return tensor

    def cast_weight(self, name: str, weight: Tensor, itemsize: int) -> Tensor:
        """Autocast's 16-bit copy of an fp32 weight: cached when the weight is a trainable leaf."""
        if weight.itemsize == itemsize:
            return weight
        cacheable = weight.requires_grad and weight.node is not None and weight.node.seq == _ACCUMULATE_SEQ
        if cacheable and name in self._cast_cache:
            return self._cast_cache[name]
        with self.filling("cast_cache" if weight.storage is None else "temporaries"):
            out = self._copied(weight, itemsize)
        if out.node is not None:
            out.node.bucket = self.bucket  # the gradient's copy belongs to the product that uses the weight
        if cacheable:
            self._cast_cache[name] = out
        return out

    def cast(self, tensor: Tensor, itemsize: int) -> Tensor:
        """A copy in another dtype; its gradient is cast back. Autocast keeps the one of the graph's leaf."""
        if tensor.itemsize == itemsize:
            return tensor
        if self.leaf is None or tensor.node is not self.leaf or itemsize != self.autocast:
            return self._copied(tensor, itemsize)
        if _LEAF not in self._cast_cache:
            self._cast_cache[_LEAF] = self._copied(tensor, itemsize)
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

    def checkpoint(self, function: Callable[..., Tensor], *arguments: Any, selective: bool = False) -> Tensor:
        """Run ``function`` keeping only its arguments; backward runs it again (use_reentrant=False).

        ``selective``: the results of ops that ask for it are kept too, and not computed again
        (create_selective_checkpoint_contexts).
        """
        frame = CheckpointFrame(function, arguments, self.autocast, selective)
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

    def _unpack(self, saved: Holder) -> Tensor | None:
        frame = saved.frame
        if not frame.done:
            self._recompute(frame)
        tensor, saved.tensor = saved.tensor, None
        return tensor

    def _recompute(self, frame: CheckpointFrame) -> None:
        frame.done = True
        before = (self._recomputing, self.grad_enabled, self._frame, self._module, self.bucket)
        self._recomputing, self.grad_enabled, self._frame = frame, True, None
        self.bucket = _TEMPORARIES
        function = frame.function
        assert function is not None
        try:
            with self.autocasting(frame.autocast) if frame.autocast else _nothing():
                function(*frame.arguments)
        except StopRecompute:
            pass
        self._recomputing, self.grad_enabled, self._frame, module, self.bucket = before
        self.enter(module)

    # The engine

    def backward(self, root: Tensor, gradient: Tensor) -> None:
        """Run the graph as torch's engine does: newest node first, gradients summed as they arrive."""
        assert root.node is not None
        self.thread, self.grad_enabled = "backward", False
        _count_dependencies(root.node)
        root.node.gradients = [gradient]
        del gradient
        ready = [(-root.node.seq, 0, root.node)]
        root.node, root.requires_grad = None, False
        count = 0
        while ready:
            _, _, node = heapq.heappop(ready)
            grads, node.gradients = node.gradients, None
            assert grads is not None
            accumulates = node.seq == _ACCUMULATE_SEQ
            if not accumulates and node.block != self.block:
                self.block = node.block
                self.boundary(("backward", node.block))
            module = self._module
            if node.module:
                self.enter(node.module)
            unpacked: list[Tensor | None] | None = [
                saved if isinstance(saved, Tensor) else self._unpack(saved) for saved in node.saved
            ]
            self._op = f"{node.name} backward"
            self.bucket = _LOGITS if node.bucket == _LOGITS else _TEMPORARIES
            needs = [edge is not None for edge in node.edges]
            outputs = node.backward(self, grads, needs)
            del unpacked
            for index, output in enumerate(outputs):
                if isinstance(output, Pending):
                    outputs[index] = output.settle(self)
            output = None
            del grads
            node.saved.clear()
            if node.module:
                self.enter(module)
            edges, node.edges = node.edges, []
            for index, edge in enumerate(edges):
                output = outputs[index]
                outputs[index] = None
                if edge is None:
                    continue
                target, slot = edge
                if output is not None:
                    buffer = target.gradients
                    if buffer is None:
                        buffer = target.gradients = [None] * target.inputs
                    held = buffer[slot]
                    if held is None:
                        buffer[slot] = output
                    else:
                        buffer[slot] = None
                        buffer[slot] = self._sum(held, output)
                    del held, buffer
                del output
                target.pending -= 1
                if not target.pending and target.gradients is not None:
                    count += 1
                    heapq.heappush(ready, (-target.seq, count, target))
            del outputs, edges, node
        self.thread, self.grad_enabled = "forward", True
        self.bucket = _TEMPORARIES

    def _sum(self, held: Tensor, other: Tensor) -> Tensor:
        """Two gradients of one tensor: summed in place when nobody else sees the first, else into new memory.

        A view keeps its base alive, so its storage has two owners and it is never summed into
        (input_buffer.cpp, can_accumulate_inplace).
        """
        if not held.view and held.storage is not None and self.owners[held.storage] == 1:
            return held
        return self.alloc(held.shape, held.itemsize, "sum of gradients")


class _Module:
    """The scope of a module's name."""

    __slots__ = ("before", "name", "tape")

    def __init__(self, tape: Tape, name: str) -> None:
        self.tape = tape
        self.name = name

    def __enter__(self) -> None:
        self.before = self.tape.enter(self.name)

    def __exit__(self, *raised: object) -> None:
        self.tape.enter(self.before)


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def _count_dependencies(root: Node) -> None:
    root.pending = 0
    stack = [root]
    while stack:
        for edge in stack.pop().edges:
            if edge is None:
                continue
            target = edge[0]
            if target.pending < 0:
                target.pending = 0
                stack.append(target)
            target.pending += 1


def _accumulate(name: str) -> BackwardFn:
    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        grad = grads[0]
        assert grad is not None
        if tape.on_gradient is not None:
            tape.on_gradient(name, grad)
            return []
        if tape.accumulating or name in tape.gradients:
            return []
        if tape.wide_gradients:
            # a hook adds the 16-bit gradient to an fp32 one as soon as it is known
            tape.gradients[name] = tape.alloc(grad.shape, 4, "fp32 gradient", BUCKET["gradients"])
            return []
        if grad.storage is not None:
            tape.bucket_of[grad.storage] = BUCKET["gradients"]
        tape.gradients[name] = grad.alias()
        return []

    return backward
