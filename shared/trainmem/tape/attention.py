"""Attention as each CUDA kernel runs it: what it keeps for backward and what it allocates on the way.

Which kernel runs is decided by dtype, grouped heads, mask and device (`trainmem.tape.hardware.sdpa_kernel`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from trainmem.tape import efficient, flash, kernels, ops
from trainmem.tape.core import Tape
from trainmem.tape.tensor import BackwardFn, Gradients, Shape, Tensor

__all__ = ["Kernel", "scaled_dot_product"]

Kernel = Literal["cudnn", "flash", "efficient", "math"]

QUERY: Shape = ("b", "heads", "s", "d")
KEY: Shape = ("b", "kv", "s", "d")
SCORES: Shape = ("b", "heads", "s", "s")
STAT: Shape = ("b", "heads", "s")


def scaled_dot_product(
    tape: Tape,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    kernel: Kernel,
    grouped: bool,
    mask: Tensor | None = None,
    causal: bool = True,
    heads_first: bool = False,
    repeated: bool = False,
    drops: bool = False,
    pads: bool = False,
) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention through one kernel.

    ``causal`` without a mask. ``heads_first``: q and k are contiguous over heads, not viewed from rows of tokens;
    ``repeated``: k and v are, as copies for every query head.
    ``drops``: dropout is on. ``pads``: heads are filled up to whole 8 elements for flash attention.
    """
    if tape.autocast:
        v = tape.cast(v, tape.autocast)
        k = tape.cast(k, tape.autocast)
        q = tape.cast(q, tape.autocast)
    bias = () if mask is None else _bias(tape, q.itemsize, padded=kernel == "efficient")
    if kernel == "math":
        width = q.itemsize
        with tape.autocasting(0):  # the call is autocast, not the products inside
            out = _math(
                tape, q, k, v, bias,
                grouped=grouped, causal=causal, heads_first=heads_first, repeated=repeated, drops=drops,
            )  # fmt: skip
        del q, k, v, bias
        return ops.merged_heads(tape, out, copies_back=width == 4)
    if kernel == "cudnn":
        return _cudnn(tape, q, k, v, bias)
    if kernel == "flash":
        if not pads:
            return _flash(tape, q, k, v, grouped=grouped, drops=drops)
        wide_q, wide_k, wide_v = _filled_up(tape, q), _filled_up(tape, k), _filled_up(tape, v)
        return ops.slice_of(tape, _flash(tape, wide_q, wide_k, wide_v, grouped=grouped, drops=drops), QUERY)
    return _efficient(tape, q, k, v, bias, drops=drops)


def _bias(tape: Tape, itemsize: int, *, padded: bool) -> tuple[Tensor, ...]:
    """convert_boolean_attn_mask: 0 or minus infinity in the dtype of q, for every query of the batch.

    ``padded``: the memory-efficient kernel wants rows of whole 8 elements; pad_bias copies others, so that of
    the two tensors answered one has no bytes.
    """
    zero = tape.alloc((), itemsize, "attention bias")
    lowest = tape.alloc((), itemsize, "attention bias")
    if not padded:
        bias = tape.alloc(("b", "s", "s"), itemsize, "attention bias")
        del lowest, zero
        return (bias,)
    whole = tape.scratch((efficient.bias_whole, itemsize), "attention bias")
    uneven = tape.scratch((efficient.bias_uneven, itemsize), "attention bias")
    del lowest, zero
    filled = tape.scratch((efficient.bias_filled, itemsize), "attention bias")
    del uneven
    return whole, filled


def _cudnn(tape: Tape, q: Tensor, k: Tensor, v: Tensor, bias: tuple[Tensor, ...]) -> Tensor:
    itemsize = q.itemsize
    shapes = (q.shape, k.shape, v.shape)
    kv_heads = k.shape[1]

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        out: Gradients = [tape.alloc(shape, itemsize, "cudnn attention backward") for shape in shapes]
        size = (kernels.cudnn_attention_backward_workspace, "b", "heads", kv_heads, "s", "d")
        tape.scratch(size, "cudnn attention backward workspace")
        return [grad if need else None for grad, need in zip(out, needs, strict=True)]

    def run(trains: bool) -> tuple[Tensor, ...]:
        seed = tape.alloc((), 8, "attention seed")
        offset = tape.alloc((), 8, "attention offset")
        out = tape.alloc(QUERY, itemsize, "cudnn attention")
        stat = tape.alloc(STAT, 4, "attention log-sum-exp") if trains else None
        tape.scratch((256,), "cudnn attention workspace")
        return (out, stat, offset, seed) if stat is not None else (out,)

    return _fused(tape, "cudnn attention", (q, k, v), bias, backward, run)


def _fused(
    tape: Tape,
    name: str,
    inputs: tuple[Tensor, Tensor, Tensor],
    bias: tuple[Tensor, ...],
    backward: BackwardFn,
    run: Callable[[bool], tuple[Tensor, ...]],
) -> Tensor:
    """One fused kernel: ``run`` answers (result, log-sum-exp, random state...), or (result,) outside training.

    A selective checkpoint keeps them all and does not run the kernel again.
    """
    q, k, v = inputs
    trains = tape.wants_grad(*inputs)
    node = tape.node(name, inputs, backward) if trains else None
    tape.save(node, *bias, k, q, v)
    results = tape.kept()
    if results is None:
        results = run(trains)
        tape.keep(*results)
    else:
        results = tuple(result.alias() for result in results)
    out = results[0]
    if node is None:
        return out
    out.node = node
    tape.save(node, results[1], out, *results[2:])
    return out


def _filled_up(tape: Tape, x: Tensor) -> Tensor:
    """pad_last_dim: the gradient is cut off into new memory."""
    shape, itemsize = x.shape, x.itemsize

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        return [tape.alloc(shape, itemsize, "pad backward")]

    return tape.op("pad", [x], (*shape[:-1], "d_round8"), itemsize, backward)


def _flash(tape: Tape, q: Tensor, k: Tensor, v: Tensor, *, grouped: bool, drops: bool) -> Tensor:
    itemsize = q.itemsize
    shapes = (q.shape, k.shape, v.shape)
    q_shape = q.shape

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        # mha_bwd: row sums and dq's fp32 accumulator are rounded up to 128 queries; grouped heads get dk, dv each
        out: Gradients = [tape.alloc(shape, itemsize, "flash attention backward") for shape in shapes]
        delta = tape.alloc(("b", "heads", "s_round128"), 4, "flash attention row sums")
        accumulator = tape.alloc(("b", "s_round128", "heads", "d_flash"), 4, "flash attention dq accumulator")
        expanded = (
            [tape.alloc(q_shape, itemsize, "flash attention expanded dk, dv") for _ in range(2)]
            if grouped
            else []
        )
        del delta, accumulator, expanded
        return [grad if need else None for grad, need in zip(out, needs, strict=True)]

    def run(trains: bool) -> tuple[Tensor, ...]:
        out = tape.alloc(q_shape, itemsize, "flash attention")
        stat = tape.alloc(STAT, 4, "attention log-sum-exp")
        split = []
        if not drops:
            split.append(tape.scratch((flash.split_sums,), "flash attention splits"))
            split.append(tape.scratch((flash.split_outputs,), "flash attention splits"))
        rng = tape.alloc((), 16, "attention seed and offset")
        unused = tape.alloc((), 8, "attention seed and offset")
        del split
        return (out, stat, rng, unused) if trains else (out,)

    return _fused(tape, "flash attention", (q, k, v), (), backward, run)


def _efficient(
    tape: Tape, q: Tensor, k: Tensor, v: Tensor, bias: tuple[Tensor, ...], *, drops: bool
) -> Tensor:
    itemsize = q.itemsize
    shapes = (q.shape, k.shape, v.shape)

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        out: Gradients = [tape.alloc(shape, itemsize, "efficient attention backward") for shape in shapes]
        delta = _row_sums(tape) if itemsize == 4 else tape.alloc(STAT, 4, "efficient attention row sums")
        workspace = tape.scratch(
            (efficient.backward_workspace, "b", "heads", "s", "d", itemsize, drops),
            "efficient attention backward workspace",
        )
        del delta, workspace
        return [grad if need else None for grad, need in zip(out, needs, strict=True)]

    def run(trains: bool) -> tuple[Tensor, ...]:
        out = tape.alloc(QUERY, itemsize, "efficient attention")
        if not trains:
            return (out,)
        return out, tape.alloc(("b", "heads", "s_round32"), 4, "attention log-sum-exp")

    return _fused(tape, "efficient attention", (q, k, v), bias, backward, run)


def _row_sums(tape: Tape) -> Tensor:
    """(grad_out * out).sum(-1).transpose(-2, -1).contiguous(); the 16-bit kernels compute it themselves."""
    product = tape.alloc(QUERY, 4, "efficient attention row sums")
    summed = tape.alloc(STAT, 4, "efficient attention row sums")
    delta = tape.alloc(STAT, 4, "efficient attention row sums")
    del summed, product
    return delta


def _math(
    tape: Tape,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: tuple[Tensor, ...],
    *,
    grouped: bool,
    causal: bool,
    heads_first: bool,
    repeated: bool,
    drops: bool,
) -> Tensor:
    """_scaled_dot_product_attention_math: scaled copies of q and k, a bias for the mask, every probability kept.

    It computes in fp32 what is 16-bit, expands grouped keys and values, and its safe softmax looks for rows that
    are masked out whole.
    """
    width = q.itemsize
    if width == 2:
        q, k, v = tape.cast(q, 4), tape.cast(k, 4), tape.cast(v, 4)
    queries = ops.scale(tape, q, "scaled query")
    if causal and not bias:
        bias = (_causal_bias(tape, q.itemsize),)
    keys = _expanded(tape, k) if grouped else k
    values = _expanded(tape, v) if grouped else v
    whole = repeated and (width == 2 or "kv" not in tape.ones)  # one fp32 head is repeated by a view
    copies = (not heads_first, not (grouped or heads_first or repeated))
    scores = ops.matmul(tape, queries, ops.scale(tape, keys, "scaled key"), SCORES, copies=copies)
    if bias and tape.intercepted:  # else in place (areAnyTensorSubclassLike)
        scores = ops.add(tape, scores, bias[0])
    weights = _safe_softmax(tape, scores)
    del scores
    weights = ops.dropout(tape, weights, float(drops))
    answered = tape.alloc(SCORES, width, "probabilities cast") if width == 2 else None
    product = ops.matmul(tape, weights, values, QUERY, copies=(False, not (grouped or whole)))
    if width == 2 and not tape.ones.intersection(QUERY[:2]):
        product = ops.heads_of(tape, product, QUERY, copies=True)  # the cast gradient lies as q does
    out = tape.cast(product, width)
    del answered
    return out


def _expanded(tape: Tape, x: Tensor) -> Tensor:
    shape, itemsize = x.shape, x.itemsize

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        return [tape.alloc(shape, itemsize, "grouped heads summed")]

    return tape.op("grouped heads expanded", [x], QUERY, itemsize, backward)


def _causal_bias(tape: Tape, itemsize: int) -> Tensor:
    ones = tape.alloc(("s", "s"), 1, "causal bias")
    lower = tape.alloc(("s", "s"), 1, "causal bias")
    del ones
    zero = tape.alloc((), itemsize, "causal bias")
    lowest = tape.alloc((), itemsize, "causal bias")
    bias = tape.alloc(("s", "s"), itemsize, "causal bias")
    del lowest, zero, lower
    return bias


def _safe_softmax(tape: Tape, scores: Tensor) -> Tensor:
    shape, itemsize = scores.shape, scores.itemsize

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        out = tape.alloc(shape, itemsize, "softmax backward")
        tape.alloc(shape, itemsize, "softmax backward product")
        return [out]

    node = tape.node("safe softmax", [scores], backward) if tape.wants_grad(scores) else None
    out = tape.alloc(shape, itemsize, "safe softmax")
    masked = tape.alloc(shape, 1, "safe softmax masked scores")
    rows = tape.alloc(shape[:-1], 1, "safe softmax masked rows")
    zero = tape.alloc((), itemsize, "safe softmax masked rows")
    del zero, rows, masked
    if node is not None:
        out.node = node
        tape.save(node, out)
    return out
