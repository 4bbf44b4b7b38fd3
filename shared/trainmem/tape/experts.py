"""Mixture of experts as transformers runs it by default: one grouped product over the sorted tokens.

Source: transformers/integrations/moe.py (grouped_mm_experts_forward). Every token goes to a fixed number of
experts, so that no size depends on where tokens go.
"""

from __future__ import annotations

from collections.abc import Callable

from trainmem.tape import ops, routing, sorting
from trainmem.tape.activations import activation
from trainmem.tape.core import Tape
from trainmem.tape.expert_adapters import ExpertWeights
from trainmem.tape.model import Block, Model
from trainmem.tape.tensor import Tensor

__all__ = ["CHOICES", "PAIRS", "apply_gate", "grouped_experts"]

CHOICES = ("b", "s", "top_k")
"""One entry for every token and every expert that it goes to."""

PAIRS = CHOICES
TOKENS = ("b", "s")
HIDDEN = ("b", "s", "h")
UP, DOWN = "mlp.experts.gate_up_proj", "mlp.experts.down_proj"


def apply_gate(model: Model, gate_up: Tensor) -> Tensor:
    """_default_apply_gate: act_fn(gate) * up of the two halves."""
    gate, up = ops.split(model.tape, gate_up, [(*PAIRS, "moe")] * 2)
    return ops.mul(model.tape, activation(model, gate), up)


def _biases(block: Block, name: str, experts: Tensor, features: str) -> Tensor | None:
    """The bias of each pair's expert."""
    if not block.has(f"{name}_bias"):
        return None
    bias = block.weight(f"{name}_bias")[1]
    return routing.take_rows(block.model.tape, bias, experts, ("experts",), (features,))


def _grouped_linear(
    tape: Tape, x: Tensor, weight: Tensor, offsets: Tensor, bias: Tensor | None, features: str
) -> Tensor:
    with tape.module("mlp.experts"):
        out = routing.grouped_mm(tape, x, weight, offsets, features)
        return out if bias is None else routing.add_in_place(tape, out, bias)


def grouped_experts(
    block: Block,
    hidden: Tensor,
    indices: Tensor,
    weights: Tensor,
    gate: Callable[[Model, Tensor], Tensor] = apply_gate,
) -> Tensor:
    """The experts over all tokens, with their adapters folded in."""
    return _forward(block, ExpertWeights(block, (DOWN, UP)), hidden, indices, weights, gate)


def _forward(
    block: Block,
    weight_of: ExpertWeights,
    hidden: Tensor,
    indices: Tensor,
    weights: Tensor,
    gate: Callable[[Model, Tensor], Tensor],
) -> Tensor:
    """grouped_mm_experts_forward: sort by expert, multiply group by group, weigh, and sum in the first order."""
    model, tape = block.model, block.model.tape
    itemsize = hidden.itemsize
    experts, order = routing.sort(tape, indices)
    selected = routing.take_rows(tape, hidden, tape.alloc(PAIRS, 8, "token of each pair"), TOKENS, ("h",))
    weights = routing.take_rows(tape, weights, order, PAIRS, ())
    histc_input = tape.alloc(PAIRS, 4, "histc input")
    counts = tape.alloc(("experts",), 4, "tokens per expert")
    offsets = tape.alloc(("experts",), 4, "offsets")
    tape.scratch((sorting.counts_scan_scratch,), "cumsum")
    mask = tape.alloc(PAIRS, 1, "sentinel mask")

    matrix, biases = weight_of(UP), _biases(block, UP, experts, "2moe")
    selected = routing.mask_rows(tape, selected, mask, in_place=True)
    out = _grouped_linear(tape, selected, matrix, offsets, biases, "2moe")
    out = routing.mask_rows(tape, out, mask)
    out = gate(model, out)
    matrix, biases = weight_of(DOWN), _biases(block, DOWN, experts, "h")
    out = _grouped_linear(tape, out, matrix, offsets, biases, "h")
    out = routing.mask_rows(tape, out, mask)

    weighted = ops.mul(tape, out, weights, out.shape)
    inverse = tape.alloc(PAIRS, 8, "inverse order")
    tape.alloc(PAIRS, 8, "inverse order arange")
    weighted = routing.take_rows(tape, weighted, inverse, PAIRS, ("h",))
    total = routing.sum_over(tape, weighted, HIDDEN)
    result = tape.cast(total, itemsize)
    del histc_input, counts
    return result
