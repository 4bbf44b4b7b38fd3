"""gpt-oss (transformers: models/gpt_oss/modeling_gpt_oss.py): experts with biases, and a sink in every softmax."""

from __future__ import annotations

from collections.abc import Sequence

from trainmem.tape import kernels, ops, routing
from trainmem.tape.core import Tape
from trainmem.tape.experts import CHOICES, PAIRS, grouped_experts
from trainmem.tape.families._decoder import (
    ByKind,
    positions,
    repeat_kv,
    run_blocks,
    token_ids,
    wanting_gradients,
)
from trainmem.tape.families._heads import decoder_loss
from trainmem.tape.families._rotary_decoder import Tables
from trainmem.tape.masks import causal_mask, sliding_causal_mask
from trainmem.tape.model import Block, Model
from trainmem.tape.norms import wide_rms_norm
from trainmem.tape.rotary import KEY, QUERY, check_length
from trainmem.tape.tensor import Gradients, Pending, Tensor

__all__ = ["forward"]

SCORES = ("b", "heads", "s", "s")
SINK = ("b", "heads", "s", "one")
WITH_SINK = ("b", "heads", "s", "s_plus_1")


def _rotary_tables(tape: Tape, itemsize: int) -> Tables:
    """cos and sin over half a head: GptOssRotaryEmbedding does not double the frequencies."""
    table = ("s", "half_d")
    with tape.module("rotary_emb"), tape.no_grad():
        check_length(tape)
        at = tape.alloc(("s",), 4, "positions in fp32")
        frequencies = tape.alloc(table, 4, "frequencies")
        ops.matrix_workspace(tape)
        raw = tape.alloc(table, 4, "cos")
        cos = tape.alloc(table, 4, "cos scaled")
        del raw
        raw = tape.alloc(table, 4, "sin")
        sin = tape.alloc(table, 4, "sin scaled")
        del raw
        if itemsize != 4:
            cast = tape.alloc(table, itemsize, "cos cast"), tape.alloc(table, itemsize, "sin cast")
            cos, sin = cast
        del at, frequencies
    return cos, sin


def _sub(tape: Tape, a: Tensor, b: Tensor) -> Tensor:
    """a - b: the gradient passes to a, and negated, then summed, to b."""
    shape, itemsize, side = a.shape, a.itemsize, b.shape

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        grad = grads[0]
        negative: Tensor | Pending = tape.alloc(shape, itemsize, "sub backward")
        if side != shape:
            negative = Pending(negative, side, shape[-1:], itemsize)  # type: ignore[arg-type]
        return [grad.alias(), negative]

    return tape.op("sub", [a, b], shape, itemsize, backward)


def _rotated(tape: Tape, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """_apply_rotary_emb."""
    half = (*x.shape[:-1], "half_d")
    first_half, second_half = ops.split(tape, x, [half, half])
    first = _sub(tape, ops.mul(tape, first_half, cos, half), ops.mul(tape, second_half, sin, half))
    second = ops.add(tape, ops.mul(tape, second_half, cos, half), ops.mul(tape, first_half, sin, half))
    return ops.cat_halves(tape, [first, second], x.shape)


def _sinks(block: Block) -> Tensor:
    """The sinks expanded to a column of the scores; their gradient is summed over batch and queries."""
    tape = block.model.tape
    weight = block.weight("self_attn.sinks")[1]
    out = Tensor(None, SINK, weight.itemsize, view=True)
    if tape.wants_grad(weight):

        def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
            summed = tape.alloc(("heads",), weight.itemsize, "sum of sink gradients")
            rule = (("heads",), ("b", "s"), True, weight.itemsize)
            staging = tape.scratch((kernels.reduction_staging, *rule), "sum staging")
            semaphores = tape.scratch((kernels.reduction_semaphores, *rule), "sum semaphores")
            del semaphores, staging
            return [summed]

        out.node = tape.node("expand", [weight], backward)
    return out


def _cat_column(tape: Tape, scores: Tensor, column: Tensor) -> Tensor:
    """cat([scores, column], dim=-1), in the wider dtype of the two under autocast."""
    itemsize = max(scores.itemsize, column.itemsize)
    return ops.cat_halves(tape, [tape.cast(scores, itemsize), tape.cast(column, itemsize)], WITH_SINK)


def _row_maxima(tape: Tape, scores: Tensor) -> Tensor:
    """max(dim=-1, keepdim=True).values; backward scatters into zeros by the indices it keeps."""
    shape, itemsize = scores.shape, scores.itemsize

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        return [tape.alloc(shape, itemsize, "max backward")]

    values = tape.op("max", [scores], SINK, itemsize, backward)
    indices = tape.alloc(SINK, 8, "max indices")
    tape.save(values.node, indices)
    return values


def _softmax(tape: Tape, x: Tensor) -> Tensor:
    """softmax(dtype=x.dtype): autocast leaves a dtype that is asked for alone."""
    with tape.autocasting(0):
        return ops.softmax(tape, x, wide=False)


def _eager_attention(block: Block, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """eager_attention_forward: the sink is one more key, which takes part in the softmax alone."""
    model, tape = block.model, block.model.tape
    keys = repeat_kv(model, k)
    values = repeat_kv(model, v)
    grouped, expanded = model.structure.grouped, model.structure.grouped and model.structure.one_head
    # autocast's copy of a single expanded head is contiguous
    copies = (False, expanded and tape.autocast in (0, keys.itemsize))
    weights = ops.scale(tape, ops.matmul(tape, q, keys, SCORES, copies=copies))
    weights = ops.add(tape, weights, mask)
    sinks = _sinks(block)
    combined = _cat_column(tape, weights, sinks)
    combined = _sub(tape, combined, _row_maxima(tape, combined))
    probabilities = _softmax(tape, combined)
    scores = ops.slice_of(tape, probabilities, SCORES)
    weights = tape.cast(ops.dropout(tape, scores, model.drops("attention")), values.itemsize)
    output = ops.matmul(tape, weights, values, QUERY, copies=(False, expanded or not grouped))
    output = ops.merged_heads(tape, output)
    del keys, sinks
    return tape.view(output, ("b", "s", "q")), weights


def _attention(block: Block, hidden: Tensor, tables: Tables, mask: Tensor) -> tuple[Tensor, Tensor]:
    tape = block.model.tape
    q = ops.heads_of(tape, block.linear(hidden, "self_attn.q_proj", "q"), QUERY, copies=True)
    k = ops.heads_of(tape, block.linear(hidden, "self_attn.k_proj", "kvd"), KEY, copies=True)
    v = ops.heads_of(tape, block.linear(hidden, "self_attn.v_proj", "kvd"), KEY, copies=True)
    with tape.module("self_attn.rotary"):
        q, k = _rotated(tape, q, *tables), _rotated(tape, k, *tables)
    with tape.module("self_attn"):
        out, weights = _eager_attention(block, q, k, v, mask)
    return block.linear(out, "self_attn.o_proj", "h"), weights


def _clamp(tape: Tape, x: Tensor, *, both: bool) -> Tensor:
    """clamp to a highest value, or to a lowest too; backward makes a mask of what was in range."""
    shape, itemsize = x.shape, x.itemsize

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        zero = tape.alloc((), itemsize, "clamp backward")
        low = tape.alloc(shape, 1, "clamp backward mask") if both else None
        high = tape.alloc(shape, 1, "clamp backward mask")
        out = tape.alloc(shape, itemsize, "clamp backward")
        del zero, low, high
        return [out]

    return tape.op("clamp", [x], shape, itemsize, backward, saves=[x])


def _apply_gate(model: Model, gate_up: Tensor) -> Tensor:
    """(clamped up + 1) * gate * sigmoid(alpha * gate), gate and up interleaved."""
    tape, half = model.tape, (*PAIRS, "moe")
    gate, up = ops.slice_of(tape, gate_up, half), ops.slice_of(tape, gate_up, half)
    gate = _clamp(tape, gate, both=False)
    up = _clamp(tape, up, both=True)
    glu = ops.mul(tape, gate, ops.unary(tape, "sigmoid", ops.scale(tape, gate), saves_input=False))
    return ops.mul(tape, ops.shift(tape, up), glu)


def _router(block: Block, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    tape = block.model.tape
    with tape.module("mlp.router"):
        weight, bias = block.weight("mlp.router.weight"), block.weight("mlp.router.bias")
        logits = ops.linear(tape, hidden, weight, "experts", bias, flattens=False)
        values, indices = routing.top_k(tape, logits, CHOICES)
        scores = _softmax(tape, values)
    return logits, scores, indices


def _mlp(block: Block, hidden: Tensor) -> tuple[Tensor, Tensor]:
    hidden = block.model.tape.view(hidden, hidden.shape)
    _, scores, indices = _router(block, hidden)
    hidden = grouped_experts(block, hidden, indices, scores, _apply_gate)
    return hidden, scores


def _block(block: Block, hidden: Tensor, tables: Tables, mask: Tensor, at: Tensor) -> Tensor:
    tape = block.model.tape
    residual = hidden
    hidden = wide_rms_norm(block, hidden, "input_layernorm")
    hidden, _ = _attention(block, hidden, tables, mask)
    hidden = ops.add(tape, residual, hidden)
    residual = hidden
    hidden = wide_rms_norm(block, hidden, "post_attention_layernorm")
    hidden, _ = _mlp(block, hidden)
    return ops.add(tape, residual, hidden)


def forward(model: Model) -> Tensor:
    """GptOssForCausalLM.forward with labels."""
    tape, outside = model.tape, model.outside
    ids = token_ids(model)
    embedded = ops.embedding(tape, ("b", "s"), outside.weight("embed_tokens.weight"), "h", ids)
    embedded = wanting_gradients(model, embedded)
    at = positions(tape)
    masks = ByKind(
        {
            "full_attention": causal_mask(model, positions=False),
            "sliding_attention": sliding_causal_mask(model, positions=False),
        }
    )
    tables = _rotary_tables(tape, embedded.itemsize)
    hidden = run_blocks(model, embedded, _block, tables, masks, at)
    hidden = wide_rms_norm(outside, hidden, "norm")
    del at, embedded, masks, tables
    return decoder_loss(model, hidden, "embed_tokens.weight")
