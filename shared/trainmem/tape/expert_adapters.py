"""LoRA on the tensors of routers and stacked experts, which PEFT folds into the weights for every forward.

Source: peft/tuners/lora/layer.py (ParamWrapper, _LoraFactorsProxy, _LoraParameterProxy); orders compared with an
allocator trace recorded on an H200. Registering the parametrization computes the folded weight once for a check
and drops it; the one that the layer then uses is kept for backward whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainmem.tape import ops
from trainmem.tape.core import Tape
from trainmem.tape.model import Block
from trainmem.tape.tensor import Gradients, Tensor

__all__ = ["ExpertWeights", "RouterWeight"]


def _of_adapter(tape: Tape, weight: tuple[str, Tensor], *, permuted: bool) -> Tensor:
    """A view of one adapter matrix as a stack of matrices; viewing a permuted one back copies its gradient."""
    matrix = weight[1]
    out = Tensor(None, matrix.shape, matrix.itemsize, view=True)
    if tape.wants_grad(matrix):
        shape, itemsize = matrix.shape, matrix.itemsize

        def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
            if permuted:
                return [tape.alloc(shape, itemsize, "adapter gradient permuted")]
            return [Tensor(grads[0].memory, shape, itemsize, view=True)]

        out.node = tape.node("reshape", [matrix], backward)
    return out


@dataclass(frozen=True, slots=True)
class _Factors:
    """The two factors of the update of a stack of experts, in the dtype of the weight."""

    weight: Tensor
    left: Tensor
    right: Tensor

    def folded(self, tape: Tape) -> Tensor:
        """torch.baddbmm(weight, left, right): ``left`` lies across experts and is copied for the product."""
        left, right, itemsize = self.left.shape, self.right.shape, self.weight.itemsize

        def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
            product = tape.alloc(left, itemsize, "baddbmm backward")
            ops.matrix_workspace(tape)
            scaled_left = tape.alloc(left, itemsize, "baddbmm backward scaled")
            del product
            product = tape.alloc(right, itemsize, "baddbmm backward")
            tape.scratch((itemsize, *left), "baddbmm contiguous factor")
            scaled_right = tape.alloc(right, itemsize, "baddbmm backward scaled")
            del product
            return [None, scaled_left, scaled_right]

        def kernel() -> None:
            tape.scratch((itemsize, *left), "baddbmm contiguous factor")
            ops.matrix_workspace(tape)

        return tape.op(
            "baddbmm", [self.weight, self.left, self.right], self.weight.shape, itemsize, backward,
            saves=[self.left, self.right], kernel=kernel,
        )  # fmt: skip


class ExpertWeights:
    """The weights that a block's experts compute with; adapted ones are folded when they are first asked for."""

    def __init__(self, block: Block, names: tuple[str, ...]) -> None:
        """``names`` from the outermost wrapper in, as PEFT nests them."""
        self._block = block
        self._factors: dict[str, _Factors] = {}
        self._folded: dict[str, Tensor] = {}
        for name in names:
            if name in (block.model.structure.lora or ()):
                self._factors[name] = self._activated(name)

    def _activated(self, name: str) -> _Factors:
        block, tape = self._block, self._block.model.tape
        weight = block.weight(name)[1]
        a, b = block.adapter(f"{name}.lora_A.weight"), block.adapter(f"{name}.lora_B.weight")
        with tape.module(name):
            right = _of_adapter(tape, a, permuted=False)
            left = _of_adapter(tape, b, permuted=True)
            factors = _Factors(weight, tape.cast(left, weight.itemsize), tape.cast(right, weight.itemsize))
            factors.folded(tape)
        return factors

    def __call__(self, name: str) -> Tensor:
        """An expert weight."""
        if name not in self._factors:
            return self._block.weight(name)[1]
        if name not in self._folded:
            self._folded[name] = self._factors[name].folded(self._block.model.tape)
        return self._folded[name]


class RouterWeight:
    """A router's weight, to which an adapter's update is added and kept while the router runs."""

    def __init__(self, block: Block, name: str) -> None:
        self._block = block
        self._name = name
        self._update: Tensor | None = None
        self._folded: Tensor | None = None
        if block.adapted(name):
            tape = block.model.tape
            with tape.module(name):
                self._update = _update(block, name)
                ops.add(tape, block.weight(f"{name}.weight")[1], self._update)

    def __call__(self) -> tuple[str, Tensor]:
        """(name, tensor) of the weight."""
        weight = self._block.weight(f"{self._name}.weight")
        if self._update is None:
            return weight
        self._folded = ops.add(self._block.model.tape, weight[1], self._update)
        return weight[0], self._folded


def _update(block: Block, name: str) -> Tensor:
    """(B @ A) * scaling in the dtype of the weight."""
    tape = block.model.tape
    weight = block.weight(f"{name}.weight")[1]
    a, b = block.adapter(f"{name}.lora_A.weight"), block.adapter(f"{name}.lora_B.weight")
    product = ops.scale(tape, _product(tape, b, a, weight.shape))
    return tape.cast(product, weight.itemsize)


def _product(
    tape: Tape, left: tuple[str, Tensor], right: tuple[str, Tensor], shape: tuple[str, ...]
) -> Tensor:
    """A matrix product of two parameters."""
    b, a = left[1], right[1]
    if tape.autocast:
        a = tape.cast_weight(right[0], a, tape.autocast)
        b = tape.cast_weight(left[0], b, tape.autocast)
    shapes, itemsize = (b.shape, a.shape), a.itemsize

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        second = tape.alloc(shapes[1], itemsize, "mm (gradient)")
        ops.matrix_workspace(tape)
        first = tape.alloc(shapes[0], itemsize, "mm (gradient)")
        return [first, second]

    return tape.op(
        "mm", [b, a], shape, itemsize, backward, saves=[a, b], costly=True,
        kernel=lambda: ops.matrix_workspace(tape),
    )  # fmt: skip
