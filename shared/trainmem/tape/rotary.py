"""Rotary position embedding, as transformers' model files write it (rotate_half, apply_rotary_pos_emb)."""

from __future__ import annotations

from trainmem.tape import ops
from trainmem.tape.core import Tape
from trainmem.tape.tensor import Tensor

__all__ = [
    "KEY",
    "QUERY",
    "apply_rotary",
    "check_length",
    "rotary_tables",
    "rotate_half",
    "rotated",
    "rotated_part",
    "with_rest",
]

QUERY = ("b", "heads", "s", "d")
KEY = ("b", "kv", "s", "d")

_HALF = {"d": "half_d", "rotary": "half_rotary"}


def rotary_tables(tape: Tape, itemsize: int, width: str = "d") -> tuple[Tensor, Tensor]:
    """cos and sin of every position over ``width`` dimensions, computed in fp32, then of ``itemsize`` bytes.

    The outer product of frequencies and positions is a batched matrix product, the step's first.
    """
    table = ("s", width)
    with tape.module("rotary_emb"), tape.no_grad():
        check_length(tape)
        inverse = tape.alloc(("s",), 4, "positions in fp32")
        frequencies = tape.alloc(("s", _HALF[width]), 4, "frequencies")
        ops.matrix_workspace(tape)
        angles = tape.alloc(table, 4, "angles")
        raw = tape.alloc(table, 4, "cos")
        cos = tape.alloc(table, 4, "cos scaled")
        del raw
        raw = tape.alloc(table, 4, "sin")
        sin = tape.alloc(table, 4, "sin scaled")
        del raw
        if itemsize != 4:
            low_cos = tape.alloc(table, itemsize, "cos cast")
            low_sin = tape.alloc(table, itemsize, "sin cast")
            del inverse, frequencies, angles
            return low_cos, low_sin
        del inverse, frequencies, angles
    return cos, sin


def check_length(tape: Tape) -> None:
    """The last position plus one, compared with lengths."""
    if not tape.frequency_checks:
        return
    last = tape.alloc((), 8, "sequence length")
    length = tape.alloc((), 8, "sequence length")
    del last
    for _ in range(tape.frequency_checks):
        tape.alloc((), 1, "sequence length compared")
    del length


def rotate_half(tape: Tape, x: Tensor) -> Tensor:
    """cat(-x2, x1) of the last dimension's halves."""
    half = (*x.shape[:-1], _HALF[x.shape[-1]])
    first, second = ops.slice_of(tape, x, half), ops.slice_of(tape, x, half)
    return ops.cat_halves(tape, [ops.neg(tape, second), first], x.shape)


def rotated(tape: Tape, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x * cos + rotate_half(x) * sin."""
    turned = ops.mul(tape, x, cos, x.shape)
    return ops.add(tape, turned, ops.mul(tape, rotate_half(tape, x), sin, x.shape))


def apply_rotary(tape: Tape, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary position embedding of queries and keys."""
    return rotated(tape, q, cos, sin), rotated(tape, k, cos, sin)


def rotated_part(tape: Tape, x: Tensor, width: str) -> tuple[Tensor, Tensor]:
    """(x[..., :rotary_dim], x[..., rotary_dim:]); the second is empty where all of a head is rotated."""
    if width == "d":
        return ops.alias(tape, x), ops.slice_of(tape, x, (*x.shape[:-1], "d_rest"))
    return ops.slice_of(tape, x, (*x.shape[:-1], width)), ops.slice_of(tape, x, (*x.shape[:-1], "d_rest"))


def with_rest(tape: Tape, embedded: Tensor, rest: Tensor) -> Tensor:
    """cat([embedded, rest], dim=-1)."""
    return ops.cat_halves(tape, [embedded, rest], (*rest.shape[:-1], "d"))
