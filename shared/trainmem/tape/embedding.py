"""Embedding tables: rows gathered forward, a dense gradient of the whole table backward."""

from __future__ import annotations

from collections.abc import Sequence

from trainmem.tape import kernels
from trainmem.tape.core import Tape
from trainmem.tape.tensor import Gradients, Shape, Tensor

__all__ = ["embedding"]


def embedding(
    tape: Tape,
    tokens: Shape,
    weight: tuple[str, Tensor],
    width: str,
    saved: Tensor | None,
    rows: str = "v",
    *,
    expanded: bool = False,
) -> Tensor:
    """Rows of a table of ``rows`` rows, one for each of ``tokens``; ``saved`` are their indices.

    ``expanded``: one row of indices stands for the whole batch, and is copied where a kernel wants them all and
    the batch is more than one.
    """
    table = weight[1]
    expanded = expanded and "b" not in tape.ones
    shape, itemsize = table.shape, table.itemsize

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        return [_gradient(tape, shape, itemsize, tokens, rows, width, expanded=expanded)]

    node = tape.node("embedding", [table], backward) if tape.wants_grad(table) else None
    tape.save(node, saved)
    copied = tape.alloc(tokens, 8, "embedding indices") if expanded else None
    out = tape.alloc((*tokens, width), itemsize, "embedding")
    del copied
    if node is not None:
        out.node = node
    return out


def _gradient(
    tape: Tape, shape: Shape, itemsize: int, tokens: Shape, rows: str, width: str, *, expanded: bool
) -> Tensor:
    """embedding_dense_backward: the dense gradient and, above 3,072 indices, a sort and partial sums.

    Equal indices are summed in parts of ten rows, which are then summed into the table; where few rows of the
    table are used often, they are added to it at once, 16-bit ones through an fp32 table of its size
    (ATen/native/cuda/{Embedding,EmbeddingBackwardKernel}.cu, torch 2.11).
    """
    copied = tape.scratch((8, *tokens), "embedding indices") if expanded else None
    indices, segment = (kernels.sorted_indices, tokens), (kernels.segments, tokens, rows)
    ordered = tape.scratch(indices, "embedding sorted indices")
    origin = tape.scratch(indices, "embedding original indices")
    counting = tape.scratch(indices, "embedding counting indices")
    tape.scratch((kernels.sort_workspace, tokens), "embedding sort")
    del counting
    gradient = tape.alloc(shape, itemsize, "embedding backward")
    offsets = tape.scratch(indices, "embedding segment offsets")
    number = tape.scratch((kernels.sorted_scalar, tokens), "embedding segments")
    unique = tape.scratch(indices, "embedding unique")
    tape.scratch((kernels.sorted_scan, tokens), "embedding unique scan")
    del unique
    partials = tape.scratch(segment, "embedding partials")
    starts = tape.scratch(segment, "embedding partial starts")
    tape.scratch((kernels.segment_scan, tokens, rows), "embedding partial scan")
    total = tape.scratch((kernels.sorted_scalar, tokens), "embedding partial total")
    where = tape.scratch((kernels.partial_segment_offsets, tokens, rows), "embedding partial offsets")
    table = (tokens, rows, width)
    sums = tape.scratch((kernels.partial_segment_sums, *table), "embedding partial sums")
    owners = tape.scratch((kernels.atomic_segment_owners, *table), "embedding partial owners")
    wide = tape.scratch((kernels.atomic_accumulator, *table, itemsize), "embedding accumulator")
    del wide, owners, sums, where, total, starts, partials, number, offsets, ordered, origin, copied
    return gradient
