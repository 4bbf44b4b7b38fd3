"""Activation functions by the names that transformers' configs use (transformers/activations.py, ACT2FN)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trainmem.tape import ops
from trainmem.tape.core import Tape
from trainmem.tape.model import Model
from trainmem.tape.tensor import Gradients, Tensor

__all__ = ["ACTIVATIONS", "activation"]


def _kept_input(name: str) -> Callable[[Tape, Tensor], Tensor]:
    """A kernel of torch's own that saves its input."""

    def apply(tape: Tape, x: Tensor) -> Tensor:
        return ops.unary(tape, name, x)

    return apply


def _identity(tape: Tape, x: Tensor) -> Tensor:
    return x


def _sigmoid(tape: Tape, x: Tensor) -> Tensor:
    return ops.unary(tape, "sigmoid", x, saves_input=False)


def _erf(tape: Tape, x: Tensor) -> Tensor:
    """Backward: grad * (2 / sqrt(pi)) * exp(-(x ** 2)), link by link."""
    shape, itemsize = x.shape, x.itemsize

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        chain = [tape.alloc(shape, itemsize, "erf backward") for _ in range(4)]
        out = tape.alloc(shape, itemsize, "erf backward")
        del chain
        return [out]

    return tape.op("erf", [x], shape, itemsize, backward, saves=[x])


def _clamp(tape: Tape, x: Tensor) -> Tensor:
    """Backward: the gradient where x lies in the range, by two bool masks."""
    shape, itemsize = x.shape, x.itemsize

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        zero = tape.alloc((), itemsize, "clamp backward")
        above, below = tape.alloc(shape, 1, "clamp backward"), tape.alloc(shape, 1, "clamp backward")
        out = tape.alloc(shape, itemsize, "clamp backward")
        del zero, above, below
        return [out]

    return tape.op("clamp", [x], shape, itemsize, backward, saves=[x])


def _laplace(tape: Tape, x: Tensor) -> Tensor:
    """0.5 * (1 + erf((x - mu) / (sigma * sqrt(2))))."""
    argument = ops.scale(tape, ops.shift(tape, x), "div")
    return ops.scale(tape, ops.shift(tape, _erf(tape, argument)))


def _gelu_written_out(tape: Tape, x: Tensor) -> Tensor:
    """x * 0.5 * (1 + erf(x / sqrt(2)))."""
    half = ops.scale(tape, x)
    return ops.mul(tape, half, ops.shift(tape, _erf(tape, ops.scale(tape, x, "div"))))


def _gelu_clipped(tape: Tape, x: Tensor) -> Tensor:
    return _clamp(tape, ops.gelu(tape, x))


def _relu(tape: Tape, x: Tensor) -> Tensor:
    return ops.unary(tape, "relu", x, saves_input=False)


def _tanh(tape: Tape, x: Tensor) -> Tensor:
    return ops.unary(tape, "tanh", x, saves_input=False)


def _relu_squared(tape: Tape, x: Tensor) -> Tensor:
    applied = _relu(tape, x)  # a name in the source: it lives until the square exists
    return ops.pow_scalar(tape, applied)


def _gelu_fast(tape: Tape, x: Tensor) -> Tensor:
    """0.5 * x * (1 + tanh(c * x * (1 + 0.044715 * x * x)))."""
    half = ops.scale(tape, x)
    return ops.mul(tape, half, ops.shift(tape, _tanh(tape, _fast_argument(tape, x))))


def _fast_argument(tape: Tape, x: Tensor) -> Tensor:
    scaled = ops.scale(tape, x)
    return ops.mul(tape, scaled, ops.shift(tape, ops.mul(tape, ops.scale(tape, x), x)))


def _gelu_quick(tape: Tape, x: Tensor) -> Tensor:
    """x * sigmoid(1.702 * x)."""
    return ops.mul(tape, x, _sigmoid(tape, ops.scale(tape, x)))


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
    "gelu_python": _gelu_written_out,
    "gelu_10": _gelu_clipped,
    "hardswish": _kept_input("hardswish"),
    "laplace": _laplace,
    "leaky_relu": _kept_input("leaky_relu"),
    "linear": _identity,
    "mish": _kept_input("mish"),
    "relu": _relu,
    "relu6": _kept_input("hardtanh"),
    "sigmoid": _sigmoid,
    "relu2": _relu_squared,
    "tanh": _tanh,
}
"""Fused kernels where torch has one (nn.functional.gelu, silu, relu); chains where the source writes a formula."""


def activation(model: Model, x: Tensor, key: str = "activation") -> Tensor:
    """The config's activation function; `structure_of` has refused those that are not here."""
    with model.tape.module("act"):
        return ACTIVATIONS[model.extra(key)](model.tape, x)
