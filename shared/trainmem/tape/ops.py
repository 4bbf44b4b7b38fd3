"""Operations as they behave under eager PyTorch on CUDA: what each allocates, saves and frees, both ways.

Names follow the ATen op. Under autocast an op of the 16-bit list casts its inputs first, an op of the fp32 list
casts 16-bit inputs up (torch/autocast_mode.h); C++ evaluates arguments right to left, so casts come in that order.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainmem.tape import kernels
from trainmem.tape.core import Tape
from trainmem.tape.embedding import embedding
from trainmem.tape.tensor import Gradients, Pending, Shape, Tensor

__all__ = [
    "add",
    "addmm",
    "cat_halves",
    "clone",
    "dropout",
    "embedding",
    "gelu",
    "gelu_new",
    "layer_norm",
    "linear",
    "matmul",
    "mean_last",
    "merged_heads",
    "mul",
    "neg",
    "pow_scalar",
    "rsqrt",
    "scale",
    "silu",
    "softmax",
    "unary",
]

Weight = tuple[str, Tensor]
"""A parameter and its name, by which autocast's cache knows it."""

CUBLAS = ("cublas",)


def _only(grads: Gradients) -> Tensor:
    grad: Tensor | None = grads[0]
    assert grad is not None
    return grad


def rows_of(tape: Tape, grads: Gradients) -> Tensor:
    """The gradient as a matrix with a row a token, copied where tokens lie apart in memory."""
    if _only(grads).apart:
        grads[0] = tape.alloc(grads[0].shape, grads[0].itemsize, "reshape")
    return _only(grads)


def matrix_workspace(tape: Tape, *, lt: bool = False) -> None:
    """cuBLAS takes its workspace at the first product of a thread; products with a bias go through cuBLASLt."""
    tape.workspace("cublas", (1, "cublas_workspace"))
    if lt:
        tape.workspace("cublaslt", (1, "cublaslt_workspace"))


# Matrix products


def addmm(
    tape: Tape,
    x: Tensor,
    weight: Weight,
    bias: Weight,
    features: str,
    *,
    transposed: bool = True,
    flattens: bool = True,
    name: str = "addmm",
) -> Tensor:
    """x @ W + b over the last dimension of ``x``, as Linear with a bias (and GPT-2's Conv1D) runs it."""
    w, b = weight[1], bias[1]
    if tape.autocast:
        if not transposed:  # Conv1D calls addmm(bias, x, weight): arguments from the right
            w = tape.cast_weight(weight[0], w, tape.autocast)
            x = tape.cast(x, tape.autocast)
            b = tape.cast_weight(bias[0], b, tape.autocast)
        else:
            b = tape.cast_weight(bias[0], b, tape.autocast)
            w = tape.cast_weight(weight[0], w, tape.autocast)
            x = tape.cast(x, tape.autocast)
    if transposed and flattens:
        # Linear flattens its input first: parameters take their gradients before the input's is summed.
        x = tape.view(x, x.shape, "flatten")
    lead = x.shape[:-1]
    in_shape, w_shape, itemsize = x.shape, w.shape, x.itemsize

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        incoming = rows_of(tape, grads).alias()
        incoming.shape = (*lead, features)
        out: Gradients = [None, None, None]
        if needs[1]:
            out[1] = tape.alloc(in_shape, itemsize, "mm (input gradient)")
            out[1].view = flattens
            matrix_workspace(tape)
        if needs[2]:
            out[2] = tape.alloc(w_shape, itemsize, "mm (weight gradient)")
            out[2].view = transposed  # a linear layer's gradient is transposed back
            matrix_workspace(tape)
        if needs[0]:
            out[0] = Pending(incoming, (features,), lead, itemsize)
        return out

    return tape.op(
        name, [b, x, w], (*lead, features), itemsize, backward,
        saves=[x if w.node is not None else None, w if x.node is not None else None], costly=True,
        kernel=lambda: matrix_workspace(tape, lt=True),
    )  # fmt: skip


def linear(
    tape: Tape,
    x: Tensor,
    weight: Weight,
    features: str,
    bias: Weight | None = None,
    *,
    flattens: bool = True,
) -> Tensor:
    """torch.nn.functional.linear: one addmm with a bias, one mm without.

    ``flattens``: the input has more than two dimensions.
    """
    if bias is not None:
        return addmm(tape, x, weight, bias, features, flattens=flattens)
    w = weight[1]
    if tape.autocast:
        w = tape.cast_weight(weight[0], w, tape.autocast)
        x = tape.cast(x, tape.autocast)
    in_shape, w_shape, itemsize = x.shape, w.shape, x.itemsize

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        rows_of(tape, grads)
        out: Gradients = [None, None]
        if needs[1]:
            out[1] = tape.alloc(w_shape, itemsize, "mm (weight gradient)")
            out[1].view = True
            matrix_workspace(tape)
        if needs[0]:
            out[0] = tape.alloc(in_shape, itemsize, "mm (input gradient)")
            out[0].view = flattens
            matrix_workspace(tape)
        return out

    return tape.op(
        "mm", [x, w], (*x.shape[:-1], features), itemsize, backward,
        saves=[x if w.node is not None else None, w if x.node is not None else None], costly=True,
        kernel=lambda: matrix_workspace(tape),
    )  # fmt: skip


def matmul(
    tape: Tape, a: Tensor, b: Tensor, shape: Shape, *, copies: tuple[bool, bool] = (False, False)
) -> Tensor:
    """A batched product of two activations (attention scores, probabilities @ values).

    ``copies``: which operands lie in memory so that folding their batch and heads into one dimension copies
    them, unless one of the two is one.
    """
    if tape.autocast:
        b = tape.cast(b, tape.autocast)
        a = tape.cast(a, tape.autocast)
    held = a, b  # the call's arguments live as long as the call
    if copies[0] and not tape.ones.intersection(a.shape[:2]):
        a = clone(tape, a, "reshape")
    if copies[1] and not tape.ones.intersection(b.shape[:2]):
        b = clone(tape, b, "reshape")
    a_shape, b_shape, itemsize = a.shape, b.shape, a.itemsize

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        out: Gradients = [None, None]
        for index, side in ((1, b_shape), (0, a_shape)):
            if needs[index]:
                out[index] = tape.alloc(side, itemsize, "bmm backward")
                out[index].view = True
                matrix_workspace(tape)
        return out

    out = tape.op(
        "bmm", [a, b], shape, itemsize, backward,
        saves=[b if a.node is not None else None, a if b.node is not None else None], costly=True,
        kernel=lambda: matrix_workspace(tape),
    )  # fmt: skip
    del held
    return out


# Pointwise


def _fitted(tape: Tape, grad: Tensor, whole: Shape, side: Shape, itemsize: int) -> Tensor | Pending:
    if side == whole and grad.itemsize == itemsize:
        return grad
    grad.shape = whole
    return Pending(grad, side, _summed(whole, side, tape.ones) if side != whole else (), itemsize)


def _summed(whole: Shape, side: Shape, ones: frozenset[str]) -> Shape:
    """The dimensions over which a broadcast side's gradient is summed; a parameter spans the last one.

    A dimension of one that a name leaves out, such as the batch of a row of positions, is there all the same.
    """
    if side and side[0].startswith("p:"):
        return whole[:-1]
    return tuple(name for name in whole if name not in side and name not in ones)


def add(tape: Tape, a: Tensor, b: Tensor, shape: Shape | None = None) -> Tensor:
    """a + b; the gradient passes through, cast to each side's dtype and summed to its shape."""
    out_shape = shape or a.shape
    sides = [(a.shape, a.itemsize), (b.shape, b.itemsize)]

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        grad = _only(grads)
        out: Gradients = []
        for need, (side, itemsize) in zip(needs, sides, strict=True):
            out.append(_fitted(tape, grad.alias(), out_shape, side, itemsize) if need else None)
        return out

    return tape.op("add", [a, b], out_shape, max(a.itemsize, b.itemsize), backward)


def mul(tape: Tape, a: Tensor, b: Tensor, shape: Shape | None = None) -> Tensor:
    """a * b; each gradient is computed at full size, then cast and summed to its side."""
    out_shape, itemsize = shape or a.shape, max(a.itemsize, b.itemsize)
    sides = [(a.shape, a.itemsize), (b.shape, b.itemsize)]

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        out: Gradients = [None, None]
        for index in (1, 0):
            if needs[index]:
                out[index] = tape.alloc(out_shape, itemsize, "mul backward")
        for index, (side, width) in enumerate(sides):
            if out[index] is not None:
                out[index] = _fitted(tape, out[index], out_shape, side, width)
        return out

    return tape.op(
        "mul", [a, b], out_shape, itemsize, backward,
        saves=[b if a.node is not None else None, a if b.node is not None else None],
    )  # fmt: skip


def scale(tape: Tape, a: Tensor, name: str = "mul") -> Tensor:
    """A tensor times a number: a copy forward, a copy backward, nothing saved."""
    shape, itemsize = a.shape, a.itemsize

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        return [tape.alloc_like(_only(grads), shape, itemsize, f"{name} backward")]

    return tape.op(name, [a], shape, itemsize, backward)


def shift(tape: Tape, a: Tensor) -> Tensor:
    """A tensor plus a number: the gradient passes through."""

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        return [_only(grads).alias()]

    return tape.op("add", [a], a.shape, a.itemsize, backward)


def neg(tape: Tape, a: Tensor) -> Tensor:
    """-a."""
    return scale(tape, a, "neg")


def unary(tape: Tape, name: str, a: Tensor, *, saves_input: bool = True) -> Tensor:
    """A pointwise function that saves its input (silu, gelu) or its output (tanh, relu), gradient of one size."""
    shape, itemsize = a.shape, a.itemsize

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        return [tape.alloc(shape, itemsize, f"{name} backward")]

    return tape.op(
        name, [a], shape, itemsize, backward, saves=[a] if saves_input else [], saves_output=not saves_input
    )


def silu(tape: Tape, a: Tensor) -> Tensor:
    """x * sigmoid(x), one kernel."""
    return unary(tape, "silu", a)


def gelu(tape: Tape, a: Tensor) -> Tensor:
    """GELU in one kernel (erf or the tanh approximation)."""
    return unary(tape, "gelu", a)


def pow_scalar(tape: Tape, a: Tensor) -> Tensor:
    """x ** n in fp32 under autocast; backward makes two temporaries beside its result."""
    if tape.autocast:
        a = tape.cast(a, 4)
    shape, itemsize = a.shape, a.itemsize

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        power = tape.alloc(shape, itemsize, "pow backward")
        product = tape.alloc(shape, itemsize, "pow backward")
        out = tape.alloc(shape, itemsize, "pow backward")
        del product, power
        return [out]

    return tape.op("pow", [a], shape, itemsize, backward, saves=[a])


def mean_last(tape: Tape, a: Tensor) -> Tensor:
    """The mean over the last dimension, kept as a dimension of one."""
    shape, itemsize, last = a.shape, a.itemsize, a.shape[-1]

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        return [tape.alloc(shape, itemsize, "mean backward")]

    out = tape.op("mean", [a], (*shape[:-1], "one"), itemsize, backward)
    staging = tape.scratch((kernels.reduction_staging, shape[:-1], (last,), True, itemsize), "mean staging")
    semaphores = tape.scratch(
        (kernels.reduction_semaphores, shape[:-1], (last,), True, itemsize), "mean semaphores"
    )
    del semaphores, staging
    return out


def rsqrt(tape: Tape, a: Tensor) -> Tensor:
    """1 / sqrt(x), saving its result; backward makes two temporaries beside its own."""
    shape, itemsize = a.shape, a.itemsize

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        scaled = tape.alloc(shape, itemsize, "rsqrt backward")
        cubed = tape.alloc(shape, itemsize, "rsqrt backward")
        out = tape.alloc(shape, itemsize, "rsqrt backward")
        del cubed, scaled
        return [out]

    return tape.op("rsqrt", [a], shape, itemsize, backward, saves_output=True)


def gelu_new(tape: Tape, x: Tensor) -> Tensor:
    """GPT-2's GELU as a chain of eager ops: 0.5 * x * (1 + tanh(c * (x + 0.044715 * x ** 3)))."""
    half = scale(tape, x)
    return mul(tape, half, shift(tape, unary(tape, "tanh", _gelu_argument(tape, x), saves_input=False)))


def _gelu_argument(tape: Tape, x: Tensor) -> Tensor:
    return scale(tape, add(tape, x, scale(tape, pow_scalar(tape, x))))


def softmax(tape: Tape, a: Tensor, *, wide: bool, fp16: bool = False) -> Tensor:
    """Softmax over the last dimension, saving its result; backward makes the product grad * result beside its own.

    ``wide``: in fp32 (dtype=torch.float32). A bf16 input is converted first; where 16 bits are ``fp16`` CUDA's
    kernel reads it as it stands, and its gradient is fp16 again (softmax in ATen/native/SoftMax.cpp).
    """
    itemsize = 4 if wide or tape.autocast else a.itemsize
    if not fp16:
        a = tape.cast(a, itemsize)
    shape, back = a.shape, a.itemsize

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        out = tape.alloc(shape, back, "softmax backward")
        tape.alloc(shape, itemsize, "softmax backward product")
        return [out]

    return tape.op("softmax", [a], shape, itemsize, backward, saves_output=True)


def dropout(tape: Tape, a: Tensor, probability: float) -> Tensor:
    """Fused dropout: the result and a bool mask, which it saves; nothing at probability 0."""
    if probability <= 0:
        return a
    shape, itemsize = a.shape, a.itemsize

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        return [tape.alloc(shape, itemsize, "dropout backward")]

    node = tape.node("native_dropout", [a], backward) if tape.wants_grad(a) else None
    mask = tape.alloc(shape, 1, "dropout mask")
    out = tape.alloc(shape, itemsize, "native_dropout")
    if node is not None:
        out.node = node
        tape.save(node, mask)
    return out


def clone(tape: Tape, a: Tensor, name: str = "contiguous") -> Tensor:
    """A copy into contiguous memory; the gradient passes through."""

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        return [_only(grads).alias()]

    return tape.op(name, [a], a.shape, a.itemsize, backward)


def merged_heads(tape: Tape, a: Tensor, *, copies_back: bool = True) -> Tensor:
    """(b, heads, s, d) made contiguous in the order of tokens, which a single head is already.

    ``copies_back``: the gradient then meets a product that needs it in the first memory order and copies it,
    unless batch or heads are one.
    """
    if "heads" in tape.ones:
        return alias(tape, a)
    shape, itemsize = a.shape, a.itemsize

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        if copies_back and not tape.ones.intersection(shape[:2]):
            return [tape.alloc(shape, itemsize, "contiguous backward")]
        return [_only(grads).alias()]

    return tape.op("contiguous", [a], shape, itemsize, backward)


# Shapes


def heads_of(tape: Tape, a: Tensor, shape: Shape, *, copies: bool) -> Tensor:
    """(b, s, heads * d) seen as (b, heads, s, d).

    ``copies``: the gradient arrives in another memory order (rotary embedding leaves it contiguous over heads),
    so that viewing it back copies it, unless there is one head.
    """
    if not copies or tape.ones.intersection(shape[1:]):
        return tape.view(a, shape)
    out = Tensor(a.memory, shape, a.itemsize, view=True)
    if tape.wants_grad(a):
        back, itemsize = a.shape, a.itemsize

        def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
            return [tape.alloc(back, itemsize, "transpose backward")]

        out.node = tape.node("transpose", [a], backward)
    return out


def keys_of(tape: Tape, a: Tensor, shape: Shape, *, transposed: bool, copies: bool) -> Tensor:
    """Keys (b, s, heads * d) seen as (b, heads, s, d).

    ``transposed``: a product with their transpose leaves their gradient with tokens side by side: it can be seen as
    (b, s, heads * d), but not as rows of tokens of several sequences. ``copies``: as in `heads_of`.
    """
    out = tape.view(a, a.shape, "transpose")
    if out.node is not None and transposed and "b" not in tape.ones:
        back = a.shape

        def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
            grad = Tensor(_only(grads).memory, back, _only(grads).itemsize, view=True)
            grad.apart = True
            return [grad]

        out.node.backward = backward
    return heads_of(tape, out, shape, copies=copies)


def alias(tape: Tape, a: Tensor) -> Tensor:
    """A slice that takes everything: the gradient passes through."""
    out = Tensor(a.memory, a.shape, a.itemsize, view=True)
    if tape.wants_grad(a):

        def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
            return [_only(grads).alias()]

        out.node = tape.node("alias", [a], backward)
    return out


def slice_of(tape: Tape, a: Tensor, shape: Shape) -> Tensor:
    """A slice (a view); its gradient is a zero tensor of the whole with the slice filled in."""
    out = Tensor(a.memory, shape, a.itemsize, view=True)
    if tape.wants_grad(a):
        whole, itemsize = a.shape, a.itemsize

        def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
            return [tape.alloc(whole, itemsize, "slice backward")]

        out.node = tape.node("slice", [a], backward)
    return out


def first_tokens(tape: Tape, a: Tensor) -> Tensor:
    """a[:, 0]: one row a sequence, a sequence apart."""
    out = slice_of(tape, a, (a.shape[0], a.shape[-1]))
    out.apart = "b" not in tape.ones
    return out


def cat_halves(tape: Tape, parts: Sequence[Tensor], shape: Shape) -> Tensor:
    """Concatenation along the last dimension in the widest dtype; each gradient is a view of the whole."""
    sides = [(p.shape, p.itemsize) for p in parts]
    widest = max([p.itemsize for p in parts])

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        grad = _only(grads)
        out: Gradients = []
        for need, (side, itemsize) in zip(needs, sides, strict=True):
            part = Tensor(grad.memory, side, grad.itemsize, view=True)
            out.append(_fitted(tape, part, side, side, itemsize) if need else None)
        return out

    return tape.op("cat", list(parts), shape, widest, backward)


def split(tape: Tape, a: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
    """Views of consecutive parts of the last dimension; backward concatenates their gradients."""
    outs = [Tensor(a.memory, shape, a.itemsize, view=True) for shape in shapes]
    if tape.wants_grad(a):
        whole, itemsize = a.shape, a.itemsize

        def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
            return [tape.alloc(whole, itemsize, "split backward")]

        node = tape.node("split", [a], backward, outputs=len(outs))
        for slot, out in enumerate(outs):
            out.node, out.slot = node, slot
    return outs


# Layers


def layer_norm(tape: Tape, x: Tensor, weight: Weight | None, bias: Weight | None) -> Tensor:
    """native_layer_norm: fp32 under autocast; saves its input, mean and reciprocal deviation."""
    if tape.autocast:
        x = tape.cast(x, 4)
    shape, itemsize = x.shape, x.itemsize
    stat = max(4, itemsize)
    affine = [parameter[1] for parameter in (weight, bias) if parameter is not None]
    affine_shape = affine[0].shape if affine else ()
    w_itemsize = affine[0].itemsize if affine else itemsize

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        out: Gradients = [None] * len(needs)
        if needs[0]:
            out[0] = tape.alloc(shape, itemsize, "layer_norm backward")
        for index in range(1, len(needs)):
            if needs[index]:
                out[index] = tape.alloc(affine_shape, w_itemsize, "layer_norm backward")
        if tape.many_rows:
            _sum_over_blocks(tape, out, w_itemsize, shape)
        return out

    out = tape.op("layer_norm", [x, *affine], shape, itemsize, backward, saves=[x, *affine])
    mean = tape.alloc((*shape[:-1], "one"), stat, "layer_norm mean")
    deviation = tape.alloc((*shape[:-1], "one"), stat, "layer_norm rstd")
    tape.save(out.node, mean, deviation)
    return out


def _sum_over_blocks(tape: Tape, out: Gradients, itemsize: int, shape: Shape) -> None:
    """The gradients of weight and bias over many rows: partial sums by block, then a sum that replaces them.

    LaunchGammaBetaBackwardCUDAKernel (layer_norm_kernel.cu) goes this way above 65,536 rows of few columns.
    """
    partial = (kernels.layer_norm_partials, shape[:-1], shape[-1], itemsize)
    blocks = [tape.scratch(partial, "layer_norm partial sums") for grad in out[1:] if grad is not None]
    for index in range(1, len(out)):
        before = out[index]
        if before is None:
            continue
        out[index] = tape.alloc(before.shape, itemsize, "layer_norm backward")
        rule = (shape[:-1], shape[-1])
        staging = tape.scratch((kernels.layer_norm_staging, *rule), "sum staging")
        semaphores = tape.scratch((kernels.layer_norm_semaphores, *rule), "sum semaphores")
        del semaphores, staging, before
    del blocks
