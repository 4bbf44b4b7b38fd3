"""Operations that route tokens to experts: top-k, sorting, gathering rows, grouped matrix products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainmem.tape import sorting
from trainmem.tape.core import Tape
from trainmem.tape.ops import matrix_workspace
from trainmem.tape.tensor import Gradients, Pending, Shape, Tensor

__all__ = [
    "add_in_place",
    "divide_by_sum",
    "grouped_mm",
    "mask_rows",
    "sort",
    "sum_over",
    "take_rows",
    "top_k",
]


def add_in_place(tape: Tape, x: Tensor, other: Tensor) -> Tensor:
    """x.add_(other): the gradient passes through to both."""

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        return [grads[0].alias() if need else None for need in needs]

    out = x.alias()
    if tape.wants_grad(x, other):
        out.node = tape.node("add_", [x, other], backward)
    return out


def top_k(tape: Tape, x: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """torch.topk over the last dimension: values, and the int64 indices that backward scatters them to."""
    whole, itemsize = x.shape, x.itemsize

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        return [tape.alloc(whole, itemsize, "topk backward")]

    values = tape.op("topk", [x], shape, itemsize, backward)
    indices = tape.alloc(shape, 8, "topk indices")
    tape.save(values.node, indices)
    return values, indices


def divide_by_sum(tape: Tape, x: Tensor) -> Tensor:
    """x /= x.sum(-1, keepdim=True): in place, so that the graph keeps a copy of x as it was."""
    shape, sums, itemsize = x.shape, (*x.shape[:-1], "one"), x.itemsize

    def sum_backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        grad = grads[0]
        return [Tensor(grad.memory, shape, itemsize, view=True)]

    total = tape.op("sum", [x], sums, itemsize, sum_backward)

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        negative = tape.alloc(shape, itemsize, "div backward")
        quotient = tape.alloc(shape, itemsize, "div backward")
        squared = tape.alloc(shape, itemsize, "div backward")
        other = tape.alloc(shape, itemsize, "div backward")
        del squared, quotient, negative
        own = tape.alloc(shape, itemsize, "div backward")
        several = tuple(name for name in shape[-1:] if name not in tape.ones)
        return [own, Pending(other, sums, several, itemsize)]

    out = x.alias()
    if tape.wants_grad(x):
        before = tape.alloc(shape, itemsize, "topk before division")
        out.node = tape.node("div_", [x, total], backward)
        tape.save(out.node, before, total)
    return out


def sort(tape: Tape, x: Tensor) -> tuple[Tensor, Tensor]:
    """torch.sort of int64 keys: sorted keys and where each came from."""
    keys = tape.alloc(x.shape, 8, "sort")
    order = tape.alloc(x.shape, 8, "sort indices")
    arange = tape.alloc(x.shape, 8, "sort arange")
    tape.scratch((sorting.sort_scratch, x.shape), "sort scratch")
    del arange
    return keys, order


def take_rows(tape: Tape, source: Tensor, index: Tensor, rows: Shape, width: Shape) -> Tensor:
    """source[index]: backward adds each row's gradient where it came from, after sorting the indices."""
    whole, picked, itemsize = source.shape, index.shape, source.itemsize

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        out = tape.alloc(whole, itemsize, "index backward")
        wrapped = tape.alloc(picked, 8, "index_put wrapped indices")
        linear = tape.alloc(picked, 8, "index_put linear indices")
        del wrapped
        ordered = tape.alloc(picked, 8, "index_put sorted indices")
        origin = tape.alloc(picked, 8, "index_put original indices")
        arange = tape.alloc(picked, 8, "index_put arange")
        tape.scratch((sorting.indexed_rows_scratch, picked, rows), "index_put sort")
        del arange, origin, ordered, linear
        return [out]

    return tape.op("index", [source], (*picked, *width), itemsize, backward, saves=[index])


def mask_rows(tape: Tape, x: Tensor, mask: Tensor, *, in_place: bool = False) -> Tensor:
    """masked_fill(mask, 0), or masked_fill_: backward masks the gradient into new memory."""
    shape, itemsize = x.shape, x.itemsize

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        return [tape.alloc(shape, itemsize, "masked_fill backward")]

    if not in_place:
        return tape.op("masked_fill", [x], shape, itemsize, backward, saves=[mask])
    out = x.alias()
    if tape.wants_grad(x):
        out.node = tape.node("masked_fill_", [x], backward)
        tape.save(out.node, mask)
    return out


def sum_over(tape: Tape, x: Tensor, shape: Shape, *, views_gradient: bool = False) -> Tensor:
    """Sum over an inner dimension; its gradient is expanded, then copied where it is viewed flat again.

    ``views_gradient``: what comes before takes the expanded gradient as it is.
    """
    whole, itemsize = x.shape, x.itemsize
    single = views_gradient or not set(whole) - set(shape) - tape.ones

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        if single:
            return [Tensor(grads[0].memory, whole, itemsize, view=True)]
        return [tape.alloc(whole, itemsize, "expanded gradient")]

    return tape.op("sum", [x], shape, itemsize, backward)


def _arguments(d: Mapping[str, int], itemsize: int) -> int:
    """Pointers (24 bytes a group, an even number of groups), strides (24) and problem sizes (12) of CUTLASS."""
    groups = d["experts"]
    if itemsize != 2 or not d["grouped_mm_kernel"]:
        return 0
    return 24 * (groups + groups % 2) + 36 * groups


def _tensor_maps(d: Mapping[str, int], itemsize: int) -> int:
    """Four 128-byte tensor maps a multiprocessor, which the kernel rewrites from group to group."""
    return 512 * d["sm_count"] if itemsize == 2 and d["grouped_mm_kernel"] else 0


def _product(tape: Tape, shape: Shape, itemsize: int, name: str) -> Tensor:
    """One grouped product: CUTLASS for bf16 where the device has it, else a product a group through cuBLAS."""
    out = tape.alloc(shape, itemsize, name)
    arguments = tape.scratch((_arguments, itemsize), "grouped_mm arguments")
    maps = tape.scratch((_tensor_maps, itemsize), "grouped_mm tensor maps")
    del maps, arguments
    if itemsize == 4 or tape.grouped_products != "kernel":
        matrix_workspace(tape)
    return out


def _one_by_one(tape: Tape, x: Tensor, w: Tensor, offsets: Tensor, features: str) -> Tensor:
    """transformers' own op for GPUs without grouped products: both gradients are made, the rows' first."""
    in_shape, w_shape, itemsize = x.shape, w.shape, x.itemsize

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        rows = tape.alloc(in_shape, itemsize, "grouped_mm (input gradient)")
        weight = tape.alloc(w_shape, itemsize, "grouped_mm (weight gradient)")
        matrix_workspace(tape)
        return [grad if need else None for grad, need in zip((rows, weight), needs, strict=True)]

    node = tape.node("grouped_mm", [x, w], backward) if tape.wants_grad(x, w) else None
    tape.save(node, x, w)
    if node is not None:
        tape.keep_with_graph(node, offsets)
    out = tape.alloc((*x.shape[:-1], features), itemsize, "grouped_mm")
    matrix_workspace(tape)
    if node is not None:
        out.node = node
    return out


def grouped_mm(tape: Tape, x: Tensor, w: Tensor, offsets: Tensor, features: str) -> Tensor:
    """torch.nn.functional.grouped_mm of rows in groups with a stack of matrices (ATen/native/cuda/GroupMM.cu).

    Autocast does not reach it: the weights keep their dtype and the rows are converted to it.
    """
    x = tape.cast(x, w.itemsize)
    if tape.grouped_products == "fallback":
        return _one_by_one(tape, x, w, offsets, features)
    in_shape, w_shape, itemsize = x.shape, w.shape, x.itemsize

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        out: Gradients = [None, None]
        if needs[1]:
            out[1] = _product(tape, w_shape, itemsize, "grouped_mm (weight gradient)")
        if needs[0]:
            out[0] = _product(tape, in_shape, itemsize, "grouped_mm (input gradient)")
        return out

    node = tape.node("grouped_mm", [x, w], backward) if tape.wants_grad(x, w) else None
    if w.node is not None:
        tape.save(node, x)
    if x.node is not None:
        tape.save(node, w)
    tape.save(node, offsets)
    out = _product(tape, (*x.shape[:-1], features), itemsize, "grouped_mm")
    if node is not None:
        out.node = node
    return out
