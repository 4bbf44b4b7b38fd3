"""Backward as torch's engine runs it: the newest node first, gradients summed as they arrive.

Source of the rules: torch/csrc/autograd/{engine,input_buffer}.cpp, functions/accumulate_grad.h.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainmem.tape.tensor import BUCKET, BackwardFn, Gradients, Node, Pending, Tensor

if TYPE_CHECKING:
    from trainmem.tape.core import Tape

__all__ = ["ACCUMULATE_SEQ", "accumulate", "run_backward"]

ACCUMULATE_SEQ = 1 << 60
"""Of the nodes that keep a parameter's gradient: they run as soon as they can."""

_TEMPORARIES, _LOGITS = BUCKET["temporaries"], BUCKET["logits"]


def run_backward(tape: Tape, root: Tensor, gradient: Tensor) -> None:
    """Run the graph as torch's engine does: newest node first, gradients summed as they arrive."""
    assert root.node is not None
    tape.thread, tape.grad_enabled = "backward", False
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
        accumulates = node.seq == ACCUMULATE_SEQ
        if not accumulates and node.block != tape.block:
            tape.block = node.block
            tape.boundary(("backward", node.block))
        module = tape.module_name
        if node.module:
            tape.enter(node.module)
        unpacked: list[Tensor | None] | None = [
            saved if isinstance(saved, Tensor) else tape.unpack(saved) for saved in node.saved
        ]
        tape.op_name = f"{node.name} backward"
        tape.bucket = _LOGITS if node.bucket == _LOGITS else _TEMPORARIES
        needs = [edge is not None for edge in node.edges]
        outputs = node.backward(tape, grads, needs)
        del unpacked
        for index, output in enumerate(outputs):
            if isinstance(output, Pending):
                outputs[index] = output.settle(tape)
        output = None
        del grads
        node.saved.clear()
        if node.module:
            tape.enter(module)
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
                    buffer[slot] = _sum(tape, held, output)
                del held, buffer
            del output
            target.pending -= 1
            if not target.pending and target.gradients is not None:
                count += 1
                heapq.heappush(ready, (-target.seq, count, target))
        del outputs, edges, node
    tape.thread, tape.grad_enabled = "forward", True
    tape.bucket = _TEMPORARIES


def _sum(tape: Tape, held: Tensor, other: Tensor) -> Tensor:
    """Two gradients of one tensor: summed in place when nobody else sees the first, else into new memory.

    A view keeps its base alive, so its storage has two owners and it is never summed into
    (input_buffer.cpp, can_accumulate_inplace).
    """
    if not held.view and held.storage is not None and tape.owners[held.storage] == 1:
        return held
    return tape.alloc(held.shape, held.itemsize, "sum of gradients")


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


def accumulate(name: str) -> BackwardFn:
    """The node of a parameter: its first gradient is kept as it is, later ones are added to it in place."""

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
