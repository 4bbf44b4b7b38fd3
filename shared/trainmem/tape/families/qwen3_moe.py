"""Qwen3 mixture of experts (transformers: models/qwen3_moe/modeling_qwen3_moe.py): experts in all blocks or some."""

from __future__ import annotations

from trainmem.tape import ops, routing
from trainmem.tape.expert_adapters import RouterWeight
from trainmem.tape.experts import CHOICES, grouped_experts
from trainmem.tape.families._decoder import rms_norm
from trainmem.tape.families._rotary_decoder import Tables, gated_mlp, rotary_decoder
from trainmem.tape.families.qwen3 import attention
from trainmem.tape.model import Block, Model
from trainmem.tape.tensor import Tensor

__all__ = ["forward"]


def _router(block: Block, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    tape = block.model.tape
    weight = RouterWeight(block, "mlp.gate")
    with tape.module("mlp.gate"):
        hidden = tape.view(hidden, hidden.shape)
        logits = ops.linear(tape, hidden, weight(), "experts")
        probabilities = ops.softmax(tape, logits, wide=True, fp16=block.model.structure.loss_scaling)
        values, indices = routing.top_k(tape, probabilities, CHOICES)
        if block.model.extra("normalized_routing"):
            values = routing.divide_by_sum(tape, values)
        values = tape.cast(values, logits.itemsize)
    return logits, values, indices


def _sparse_mlp(block: Block, hidden: Tensor) -> Tensor:
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
    hidden = _sparse_mlp(block, hidden) if block.has("mlp.gate.weight") else gated_mlp(block, hidden)
    return ops.add(tape, residual, hidden)


def forward(model: Model) -> Tensor:
    """Qwen3MoeForCausalLM.forward with labels."""
    return rotary_decoder(model, _block)
