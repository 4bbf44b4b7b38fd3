"""Attention masks as transformers' masking_utils makes them before the first block.

Fused attention needs none while plain causality (or none at all) says everything; a sliding window does from
the length on at which it hides something. Eager attention adds one, except an encoder's full attention.
"""

from __future__ import annotations

from collections.abc import Callable

from trainmem.tape import kernels
from trainmem.tape.core import Tape
from trainmem.tape.model import Model
from trainmem.tape.tensor import Shape, Tensor

__all__ = [
    "causal_mask",
    "padded_causal_mask",
    "sliding_bidirectional_mask",
    "sliding_causal_mask",
    "unpacked_causal_mask",
]

SQUARE = ("s", "s")


def causal_mask(model: Model, *, positions: bool = True) -> Tensor | None:
    """create_causal_mask without a padding mask; it looks for packed sequences where it gets ``positions``."""
    tape = model.tape
    with tape.module("causal mask"):
        if positions:
            _packed_sequences(model)
        if model.structure.attention == "sdpa":
            return None
        return _added(model, _indexed(tape, _causal))


def unpacked_causal_mask(model: Model) -> Tensor | None:
    """create_causal_mask without position ids, so that nothing is looked at for packed sequences."""
    tape = model.tape
    with tape.module("causal mask"):
        return None if model.structure.attention == "sdpa" else _added(model, _indexed(tape, _causal))


def sliding_causal_mask(model: Model, *, positions: bool = True) -> Tensor | None:
    """create_sliding_window_causal_mask without a padding mask."""
    tape = model.tape
    with tape.module("sliding mask"):
        if positions:
            _packed_sequences(model)
        if model.structure.attention == "eager":
            return _added(model, _indexed(tape, _causal_window))
        return _indexed(tape, _causal_window) if model.structure.windowed else None


def sliding_bidirectional_mask(model: Model) -> Tensor | None:
    """create_bidirectional_sliding_window_mask without a padding mask."""
    tape = model.tape
    if not model.structure.windowed:
        return None
    with tape.module("sliding mask"):
        allowed = _indexed(tape, _bidirectional_window)
        return _added(model, allowed) if model.structure.attention == "eager" else allowed


def padded_causal_mask(model: Model, padding: Tensor) -> Tensor | None:
    """create_causal_mask with a padding mask of ones, which fused attention looks at and drops."""
    tape = model.tape
    with tape.module("causal mask"):
        allowed = tape.alloc(padding.shape, 1, "padding mask")
        if model.structure.attention == "sdpa":
            _all_true(tape, allowed)
            return None
        return _added(model, _indexed(tape, _causal_and_padded))


def _packed_sequences(model: Model) -> None:
    """find_packed_sequence_indices: a cumulative sum over the gaps between position ids, and its end."""
    tape, batch = model.tape, ("b", "s")
    first = tape.alloc(("b",), 8, "packed sequences")
    joined = tape.alloc(("b", "s_plus_1"), 8, "packed sequences")
    difference = tape.alloc(batch, 8, "packed sequences")
    del joined
    starts = tape.alloc(batch, 1, "packed sequences")
    ids = tape.alloc(batch, 8, "packed sequences")
    counted = tape.alloc(batch, 8, "packed sequences")
    if model.structure.batch_of_one:
        tape.scratch((kernels.scan_workspace, ("s",)), "packed sequences")
    del counted, starts
    last = tape.alloc(("b",), 1, "packed sequences")
    single = tape.alloc((), 1, "packed sequences")
    del last, single
    del first, difference, ids


def _all_true(tape: Tape, mask: Tensor) -> None:
    """fast_all: the sum of a bool mask, widened to int64 first, compared with the number of elements."""
    total = tape.alloc((), 8, "padding mask sum")
    wide = tape.alloc(mask.shape, 8, "padding mask sum")
    rule = ((), mask.shape, True, 8)
    staging = tape.scratch((kernels.reduction_staging, *rule), "padding mask sum staging")
    semaphores = tape.scratch((kernels.reduction_semaphores, *rule), "padding mask sum semaphores")
    del semaphores, staging, wide
    equal = tape.alloc((), 1, "padding mask sum")
    del total, equal


def _indexed(tape: Tape, rule: Callable[[Tape], Tensor]) -> Tensor:
    """sdpa_mask: a rule over the indices of batch, head, query and key."""
    batch = tape.alloc(("b",), 8, "mask indices")
    head = tape.alloc((), 8, "mask indices")
    query = _range(tape)
    key = _range(tape)
    allowed = rule(tape)
    del batch, head, query, key
    return allowed


def _range(tape: Tape) -> Tensor:
    start = tape.alloc(("s",), 8, "mask indices")
    shifted = tape.alloc(("s",), 8, "mask indices")
    del start
    return shifted


def _all_of(tape: Tape, *rules: Callable[[Tape], Tensor]) -> Tensor:
    """and_masks: the conjunction of rules, beginning with a single true value."""
    result = tape.alloc((), 1, "mask")
    shape: Shape = ()
    for rule in rules:
        allowed = rule(tape)
        shape = _broadcast(shape, allowed.shape)
        result = tape.alloc(shape, 1, "mask")
        del allowed
    return result


def _broadcast(one: Shape, other: Shape) -> Shape:
    if "b" in other and "b" not in one:
        return ("b", *one)
    return one or SQUARE


def _causal(tape: Tape) -> Tensor:
    return tape.alloc(SQUARE, 1, "mask")


def _window(tape: Tape) -> Tensor:
    """key > query - window."""
    shifted = tape.alloc(("s",), 8, "mask indices")
    near = tape.alloc(SQUARE, 1, "mask")
    del shifted
    return near


def _distance(tape: Tape) -> Tensor:
    """abs(query - key) <= window."""
    difference = tape.alloc(SQUARE, 8, "mask distances")
    distance = tape.alloc(SQUARE, 8, "mask distances")
    del difference
    near = tape.alloc(SQUARE, 1, "mask")
    del distance
    return near


def _everywhere(tape: Tape) -> Tensor:
    return tape.alloc(("s",), 1, "mask")


def _padding(tape: Tape) -> Tensor:
    """padding_mask[batch, key], whose indices are expanded to each other; those of keys fit a batch of one."""
    rows = tape.alloc(("b", "s"), 8, "padding mask indices")
    columns = None if "b" in tape.ones else tape.alloc(("b", "s"), 8, "padding mask indices")
    allowed = tape.alloc(("b", "s"), 1, "padding mask")
    del columns, rows
    return allowed


def _causal_window(tape: Tape) -> Tensor:
    return _all_of(tape, _window, _causal)


def _bidirectional_window(tape: Tape) -> Tensor:
    return _all_of(tape, _distance, _everywhere)


def _causal_and_padded(tape: Tape) -> Tensor:
    return _all_of(tape, _causal, _padding)


def _added(model: Model, allowed: Tensor) -> Tensor:
    """eager_mask: 0 where attention may look and the lowest number elsewhere, in the model's dtype."""
    tape, itemsize = model.tape, model.structure.weight_itemsize
    zero = tape.alloc((), itemsize, "mask")
    lowest = tape.alloc((), itemsize, "mask")
    mask = tape.alloc(("b", "s", "s"), itemsize, "mask")
    del lowest, zero, allowed
    return mask
