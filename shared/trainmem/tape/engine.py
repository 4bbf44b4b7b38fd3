"""Backward as torch's engine runs it: the newest node first, gradients summed as they arrive.

Source of the rules: torch/csrc/autograd/{engine,input_buffer}.cpp, functions/accumulate_grad.h.
"""

from __future__ import annotations

import heapq
import sys
from typing import TYPE_CHECKING

from trainmem.tape.tensor import BUCKET, Holder, Node, Pending, Tensor

if TYPE_CHECKING:
    from trainmem.tape.core import Tape

__all__ = ["ACCUMULATE_SEQ", "run_backward"]

ACCUMULATE_SEQ = 1 << 60
"""Of the nodes that keep a parameter's gradient: they run as soon as they can."""

_TEMPORARIES, _LOGITS = BUCKET["temporaries"], BUCKET["logits"]
_WANTED = (True,)
_ONE_OWNER = 3
"""What `sys.getrefcount` counts of a memory with one owner: a name for it and its own argument, too."""


def run_backward(tape: Tape, root: Tensor, gradient: Tensor) -> None:
    """Run the graph as torch's engine does: newest node first, gradients summed as they arrive."""
    assert root.node is not None
    tape.thread, tape.grad_enabled = "backward", False
    _count_dependencies(root.node)
    root.node.gradients = [gradient]
    del gradient
    ready = [(-root.node.seq, 0, root.node)]
    root.node = None
    count, outside = 0, tape.prefix
    push, pop = heapq.heappush, heapq.heappop
    while ready:
        node = pop(ready)[2]
        grads, node.gradients = node.gradients, None
        assert grads is not None
        backward = node.backward
        if backward is None:
            _accumulate(tape, node.name, grads[0])
            del grads, node
            continue
        if node.block != tape.block:
            tape.block = node.block
            tape.boundary(("backward", node.block))
        tape.prefix = node.prefix
        edges, node.edges = node.edges, []
        unpacked = [tape.unpack(saved) for saved in node.saved if type(saved) is Holder]
        tape.bucket = _LOGITS if node.bucket == _LOGITS else _TEMPORARIES
        needs = [edge is not None for edge in edges] if len(edges) > 1 else _WANTED
        outputs = backward(tape, grads, needs)
        del unpacked
        for index, output in enumerate(outputs):
            if type(output) is Pending:
                outputs[index] = output.settle(tape)
        output = None
        del grads
        node.saved.clear()
        tape.prefix = outside
        outputs.reverse()
        for edge in edges:
            output = outputs.pop()
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
                push(ready, (-target.seq, count, target))
        del outputs, edges, node
    tape.thread, tape.grad_enabled = "forward", True
    tape.bucket, tape.prefix = _TEMPORARIES, outside


def _sum(tape: Tape, held: Tensor, other: Tensor) -> Tensor:
    """Two gradients of one tensor: summed in place when nobody else sees the first, else into new memory.

    A view keeps its base alive, so its storage has two owners and it is never summed into
    (input_buffer.cpp, can_accumulate_inplace).
    """
    memory = held.memory
    if not held.view and memory is not None and sys.getrefcount(memory) == _ONE_OWNER:
        if memory.key not in tape.gradients.values():
            return held
        tape.kept_owns = True
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


def _accumulate(tape: Tape, name: str, grad: Tensor) -> None:
    """The node of a parameter: its first gradient is kept as it is, later ones are added to it in place."""
    if tape.on_gradient is not None:
        tape.on_gradient(name, grad)
        return
    if tape.accumulating or name in tape.gradients:
        return
    if tape.wide_gradients:
        # a hook adds the 16-bit gradient to an fp32 one as soon as it is known
        grad = tape.alloc(grad.shape, 4, "fp32 gradient")
    assert grad.memory is not None
    tape.gradients[name] = grad.memory.key
