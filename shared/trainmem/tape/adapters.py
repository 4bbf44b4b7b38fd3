"""Linear layers with LoRA adapters beside them, over a base that may be packed in 4 or 8 bits.

Sources: peft/tuners/lora/layer.py (Linear.forward) and bitsandbytes/autograd/_functions.py (MatMul4Bit,
MatMul8bitLt) with backends/cuda/ops.py; orders compared with allocator traces recorded on an H200.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trainmem.tape import kernels, ops
from trainmem.tape.core import Tape
from trainmem.tape.tensor import Gradients, Shape, Tensor

__all__ = ["base_linear", "lora_linear"]

Weight = tuple[str, Tensor]


def lora_linear(
    tape: Tape,
    x: Tensor,
    base: Callable[[], Tensor],
    a: Weight,
    b: Weight,
    rank: str,
    features: str,
    *,
    flattens: bool = True,
) -> Tensor:
    """base() + B(A(x)) * scaling: the base layer first, the input cast to the adapters' dtype, the sum cast back.

    The base layer's output dies as soon as the sum exists.
    """
    result = base()
    width = result.itemsize
    x = tape.cast(x, a[1].itemsize)
    with tape.module("lora_B"):
        result = ops.add(
            tape,
            result,
            ops.scale(
                tape,
                ops.linear(tape, _lora_a(tape, x, a, rank, flattens), b, features, flattens=flattens),
            ),
        )
    return tape.cast(result, width)


def _lora_a(tape: Tape, x: Tensor, a: Weight, rank: str, flattens: bool) -> Tensor:
    with tape.module("lora_A"):
        return ops.linear(tape, x, a, rank, flattens=flattens)


def base_linear(
    tape: Tape,
    x: Tensor,
    weight: str,
    features: str,
    quantization: str,
    bias: Weight | None,
    original: int,
    *,
    fp16: bool,
    packed: bool,
) -> Tensor:
    """A packed linear layer: the weight is unpacked for every product, forward and backward.

    ``fp16``: what is 16-bit around it is fp16, not the bf16 in which a 4-bit layer computes. ``packed``: a kernel
    of bitsandbytes reads the 4-bit weight as it is in the forward pass.
    """
    if quantization == "nf4":
        # Where a dispatch mode sees the product, autocast is off inside it.
        casts = fp16 and not packed and not tape.intercepted
        if fp16 and x.itemsize == 2:
            x = tape.recast(x)  # it lives as long as the call
            out = _four_bit(tape, x, weight, features, bias, original, packed=packed, casts=casts)
            return out if casts else tape.recast(out)
        return _four_bit(tape, x, weight, features, bias, original, packed=packed, casts=casts)
    return _eight_bit(tape, x, weight, features, bias, fp16=fp16)


def _four_bit(
    tape: Tape,
    x: Tensor,
    weight: str,
    features: str,
    bias: Weight | None,
    original: int,
    *,
    packed: bool,
    casts: bool,
) -> Tensor:
    """MatMul4Bit with double quantisation: scales unpacked twice, then the whole weight, for a product of cuBLAS.

    Backward unpacks to the dtype that the weight had (``original`` bytes) before it was packed. ``casts``: the
    product is F.linear under an autocast to fp16, which casts weight and input once more; the gradient of the
    input is fp16 then, and the engine brings it back to the input's bf16.

    Nothing of the input is kept: the weight does not train.
    """
    numel, width = f"p:{weight}", x.itemsize
    x = tape.converted(x, 2)  # to the layer's compute dtype
    _cast_bias(tape, bias, 2)
    in_shape = x.shape

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        scales = tape.scratch((kernels.nf4_scales, numel), "4-bit scales")
        unpacked = tape.alloc((numel,), original, "4-bit weight unpacked")
        del scales
        if original != 2:
            unpacked = tape.alloc((numel,), 2, "4-bit weight cast")
        out = tape.alloc(in_shape, 2, "4-bit mm (input gradient)")
        ops.matrix_workspace(tape)
        del unpacked
        return [tape.alloc(in_shape, 2, "cast by the engine")] if casts else [out]

    node = tape.node("4-bit mm", [x], backward) if tape.wants_grad(x) else None
    held: tuple[Tensor, ...] = ()
    if not packed:
        held = _unpacked(tape, numel)
    elif x.apart:
        held = (tape.alloc(x.shape, 2, "contiguous"),)
    if casts:
        # arguments from the last to the first
        if bias is not None:
            held += (tape.alloc((features,), 2, "bias cast"),)
        held += (tape.alloc((numel,), 2, "4-bit weight cast"), tape.alloc(x.shape, 2, "cast"))
    out = tape.alloc((*x.shape[:-1], features), 2, "4-bit mm")
    if not packed:
        ops.matrix_workspace(tape, lt=bias is not None)
    del held
    if node is not None:
        out.node = node
    del node
    return tape.cast(out, width)


def _unpacked(tape: Tape, numel: str) -> tuple[Tensor, ...]:
    scales = tape.scratch((kernels.nf4_scales, numel), "4-bit scales")
    shifted = tape.scratch((kernels.nf4_scales, numel), "4-bit scales")
    return scales, shifted, tape.alloc((numel,), 2, "4-bit weight unpacked")


def _cast_bias(tape: Tape, bias: Weight | None, itemsize: int) -> None:
    """A packed layer's bias takes, once for good, the dtype of the first input (Linear4bit, Linear8bitLt)."""
    if bias is not None and bias[1].itemsize != itemsize:
        tape.replace_loaded(bias[0], (itemsize, *bias[1].shape))


def _eight_bit(
    tape: Tape, x: Tensor, weight: str, features: str, bias: Weight | None, *, fp16: bool
) -> Tensor:
    """MatMul8bitLt: the input quantised row by row, an int32 product, scaled back; backward unpacks the weight.

    It quantises from fp16 and scales back to fp16, which costs no copy where the input is ``fp16`` already.
    """
    _cast_bias(tape, bias, x.itemsize)
    numel, rows = f"p:{weight}", x.shape[:-1]
    in_shape, width = x.shape, x.itemsize

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        held = grads[0]  # a function written in Python keeps its arguments to its end
        ops.rows_of(tape, grads)
        unpacked = tape.alloc((numel,), width, "8-bit weight unpacked")
        tape.alloc((features,), 4, "8-bit row scales")
        out = tape.alloc(in_shape, width, "8-bit mm (input gradient)")
        ops.matrix_workspace(tape)
        del unpacked, held
        out.view = True  # grad_A.view(ctx.grad_shape)
        return [out]

    node = tape.node("8-bit mm", [x], backward) if tape.wants_grad(x) else None
    if node is not None:
        # an attribute of the autograd context: no hook sees it, and it lives as long as the graph
        tape.keep_with_graph(node, x)
    is_half = fp16 and width == 2
    half = None if is_half else tape.alloc(in_shape, 2, "8-bit input in fp16")
    scales = tape.alloc(rows, 4, "8-bit input scales")
    packed = tape.alloc(in_shape, 1, "8-bit input")
    del half
    whole: Shape = (*rows, features)
    product = tape.alloc(whole, 4, "8-bit mm int32")
    out = tape.alloc(whole, 2, "8-bit mm fp16")
    if not is_half:
        out = tape.alloc(whole, width, "8-bit mm")
    del product, packed, scales
    if node is not None:
        out.node = node
    return out
