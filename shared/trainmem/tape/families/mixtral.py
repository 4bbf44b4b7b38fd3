"""Mixtral (transformers: models/mixtral/modeling_mixtral.py): Mistral with experts in place of the MLP."""

from __future__ import annotations

from collections.abc import Sequence

from trainmem.tape import ops, routing
from trainmem.tape.core import Tape
from trainmem.tape.expert_adapters import RouterWeight
from trainmem.tape.experts import CHOICES, grouped_experts
from trainmem.tape.families._decoder import rms_norm
from trainmem.tape.families._rotary_decoder import Tables, rotary_decoder
from trainmem.tape.families.llama import attention
from trainmem.tape.model import Block, Model
from trainmem.tape.tensor import Gradients, Tensor

__all__ = ["forward"]


def _router(block: Block, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    tape = block.model.tape
    weight = RouterWeight(block, "mlp.gate")
    with tape.module("mlp.gate"):
        hidden = tape.view(hidden, hidden.shape)
        logits = ops.linear(tape, hidden, weight(), "experts")
        probabilities = ops.softmax(tape, logits, wide=True)
        values, indices = routing.top_k(tape, probabilities, CHOICES)
        values = routing.divide_by_sum(tape, values)
    return logits, values, indices


def _jittered(tape: Tape, hidden: Tensor) -> Tensor:
    """hidden *= noise, in place: the noise is kept for the gradient."""
    shape, itemsize = hidden.shape, hidden.itemsize

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        return [tape.alloc(shape, itemsize, "jitter backward")]

    noise = tape.alloc(shape, itemsize, "router jitter")
    out = hidden.alias()
    if tape.wants_grad(hidden):
        out.node = tape.node("mul_", [hidden], backward)
        tape.save(out.node, noise)
    return out


def _sparse_mlp(block: Block, hidden: Tensor) -> Tensor:
    if block.model.extra("router_jitter"):
        hidden = _jittered(block.model.tape, hidden)
    hidden = block.model.tape.view(hidden, hidden.shape)
    _, weights, indices = _router(block, hidden)
    return grouped_experts(block, hidden, indices, weights)


def _block(block: Block, hidden: Tensor, tables: Tables, mask: Tensor | None, at: Tensor) -> Tensor:
    tape = block.model.tape
    residual = hidden
    hidden = rms_norm(block, hidden, "input_layernorm")
    hidden, _ = attention(block, hidden, tables, mask)
    hidden = ops.add(tape, residual, hidden)
    residual = hidden
    hidden = rms_norm(block, hidden, "post_attention_layernorm")
    hidden = _sparse_mlp(block, hidden)
    return ops.add(tape, residual, hidden)


def forward(model: Model) -> Tensor:
    """MixtralForCausalLM.forward with labels."""
    return rotary_decoder(model, _block)
