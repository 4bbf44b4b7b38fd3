"""RMS norms that differ from Llama's in where they convert back to the input's dtype."""

from __future__ import annotations

from trainmem.tape import ops
from trainmem.tape.core import Tape
from trainmem.tape.model import Block
from trainmem.tape.tensor import Tensor

__all__ = ["centered_rms_norm", "wide_rms_norm"]


def wide_rms_norm(block: Block, x: Tensor, name: str) -> Tensor:
    """Olmo2RMSNorm: as Llama's, but the weight multiplies in fp32, before the conversion back."""
    tape = block.model.tape
    with tape.module(name):
        itemsize = x.itemsize
        hidden = tape.cast(x, 4)
        variance = ops.mean_last(tape, ops.pow_scalar(tape, hidden))
        hidden = ops.mul(tape, hidden, ops.rsqrt(tape, ops.shift(tape, variance)))
        return tape.cast(ops.mul(tape, block.weight(f"{name}.weight")[1], hidden, x.shape), itemsize)


def centered_rms_norm(block: Block, x: Tensor, name: str) -> Tensor:
    """GemmaRMSNorm: normalised in fp32 and multiplied by 1 + weight, whose fp32 value is made anew."""
    tape = block.model.tape
    with tape.module(name):
        output = _normalised(tape, tape.cast(x, 4))
        output = ops.mul(tape, output, ops.shift(tape, tape.cast(block.weight(f"{name}.weight")[1], 4)))
        return tape.cast(output, x.itemsize)


def _normalised(tape: Tape, x: Tensor) -> Tensor:
    return ops.mul(tape, x, ops.rsqrt(tape, ops.shift(tape, ops.mean_last(tape, ops.pow_scalar(tape, x)))))
