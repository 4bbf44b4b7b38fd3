"""Mixture of experts as transformers runs it by default: one grouped product over the sorted tokens.

Source: transformers/integrations/moe.py (grouped_mm_experts_forward). Every token goes to a fixed number of
experts, so that no size depends on where tokens go.
"""

from __future__ import annotations

from collections.abc import Callable

from trainmem.tape import ops, routing, sorting
from trainmem.tape.core import Tape, Tensor
from trainmem.tape.model import Block

__all__ = ["CHOICES", "PAIRS", "apply_gate", "grouped_experts"]

CHOICES = ("b", "s", "top_k")
"""One entry for every token and every expert that it goes to."""

PAIRS = CHOICES
TOKENS = ("b", "s")


def apply_gate(tape: Tape, gate_up: Tensor) -> Tensor:
    """silu(gate) * up of the two halves."""
    gate, up = ops.split(tape, gate_up, [(*PAIRS, "moe")] * 2)
    return ops.mul(tape, ops.silu(tape, gate), up)


def _product(block: Block, x: Tensor, name: str, offsets: Tensor, experts: Tensor, features: str) -> Tensor:
    """_grouped_linear, with the bias of each row's expert gathered where there is one."""
    tape = block.model.tape
    with tape.module(name):
        return routing.grouped_mm(tape, x, block.weight(name), offsets, features)


def grouped_experts(
    block: Block,
    hidden: Tensor,
    indices: Tensor,
    weights: Tensor,
    gate: Callable[[Tape, Tensor], Tensor] = apply_gate,
) -> Tensor:
    """grouped_mm_experts_forward: sort by expert, multiply group by group, weigh, and sum in the first order."""
    tape = block.model.tape
    itemsize = hidden.itemsize
    experts, order = routing.sort(tape, indices)
    selected = routing.take_rows(tape, hidden, tape.alloc(PAIRS, 8, "token of each pair"), TOKENS, ("h",))
    weights = routing.take_rows(tape, weights, order, PAIRS, ())
    narrow = tape.alloc(PAIRS, 4, "histc input")
    counts = tape.alloc(("experts",), 4, "tokens per expert")
    offsets = tape.alloc(("experts",), 4, "offsets")
    tape.scratch((sorting.counts_scan_scratch,), "cumsum")
    mask = tape.alloc(PAIRS, 1, "sentinel mask")
    selected = routing.mask_rows(tape, selected, mask, in_place=True)

    out = _product(block, selected, "mlp.experts.gate_up_proj", offsets, experts, "2moe")
    out = routing.mask_rows(tape, out, mask)
    out = gate(tape, out)
    out = _product(block, out, "mlp.experts.down_proj", offsets, experts, "h")
    out = routing.mask_rows(tape, out, mask)

    weighted = ops.mul(tape, out, weights, out.shape)
    back = tape.alloc(PAIRS, 8, "inverse order")
    tape.alloc(PAIRS, 8, "inverse order arange")
    weighted = routing.take_rows(tape, weighted, back, PAIRS, ("h",))
    total = routing.sum_over(tape, weighted, ("b", "s", "h"))
    result = tape.cast(total, itemsize)
    del narrow, counts
    return result
