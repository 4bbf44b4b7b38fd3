"""Activation functions by the names that transformers' configs use (transformers/activations.py, ACT2FN)."""

from __future__ import annotations

from collections.abc import Callable

from trainmem.tape import ops
from trainmem.tape.core import Tape, Tensor
from trainmem.tape.model import Model

__all__ = ["ACTIVATIONS", "activation"]


def _relu(tape: Tape, x: Tensor) -> Tensor:
    return ops.unary(tape, "relu", x, saves_input=False)


def _tanh(tape: Tape, x: Tensor) -> Tensor:
    return ops.unary(tape, "tanh", x, saves_input=False)


def _relu_squared(tape: Tape, x: Tensor) -> Tensor:
    return ops.pow_scalar(tape, _relu(tape, x))


def _gelu_fast(tape: Tape, x: Tensor) -> Tensor:
    """0.5 * x * (1 + tanh(c * x * (1 + 0.044715 * x * x)))."""
    half = ops.scale(tape, x)
    return ops.mul(tape, half, ops.shift(tape, _tanh(tape, _fast_argument(tape, x))))


def _fast_argument(tape: Tape, x: Tensor) -> Tensor:
    scaled = ops.scale(tape, x)
    return ops.mul(tape, scaled, ops.shift(tape, ops.mul(tape, ops.scale(tape, x), x)))


def _gelu_quick(tape: Tape, x: Tensor) -> Tensor:
    """x * sigmoid(1.702 * x)."""
    return ops.mul(tape, x, ops.unary(tape, "sigmoid", ops.scale(tape, x), saves_input=False))


ACTIVATIONS: dict[str, Callable[[Tape, Tensor], Tensor]] = {
    "silu": ops.silu,
    "swish": ops.silu,
    "gelu": ops.gelu,
    "gelu_pytorch_tanh": ops.gelu,
    "gelu_new": ops.gelu_new,
    "gelu_accurate": ops.gelu_new,
    "gelu_python_tanh": ops.gelu_new,
    "gelu_fast": _gelu_fast,
    "quick_gelu": _gelu_quick,
    "relu": _relu,
    "relu2": _relu_squared,
    "tanh": _tanh,
}
"""Fused kernels where torch has one (nn.functional.gelu, silu, relu); chains where the source writes a formula."""


def activation(model: Model, x: Tensor) -> Tensor:
    """The config's activation function; `structure_of` has refused those that are not here."""
    with model.tape.module("act"):
        return ACTIVATIONS[model.extra("activation")](model.tape, x)
