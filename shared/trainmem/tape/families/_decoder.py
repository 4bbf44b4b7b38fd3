"""What decoders share: positions, masks, rotary tables, attention and the causal language-model loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from trainmem.tape import ops
from trainmem.tape.attention import scaled_dot_product
from trainmem.tape.core import Tape
from trainmem.tape.fully_sharded import before
from trainmem.tape.fused_loss import fused_linear_cross_entropy
from trainmem.tape.masks import causal_mask, sliding_causal_mask
from trainmem.tape.model import Block, Model
from trainmem.tape.tensor import Gradients, Tensor

__all__ = [
    "HIDDEN",
    "ByKind",
    "attend",
    "attention_and_weights",
    "causal_loss",
    "language_loss",
    "masks",
    "positions",
    "rms_norm",
    "run_blocks",
    "token_ids",
    "value_copies",
    "wanting_gradients",
]

HIDDEN = ("b", "s", "h")
QUERY = ("b", "heads", "s", "d")
SCORES = ("b", "heads", "s", "s")


def token_ids(model: Model) -> Tensor:
    """The batch of token ids, in memory since before the step."""
    return Tensor(None, ("b", "s"), 8)


def positions(tape: Tape) -> Tensor:
    """arange(s) + past length, in int64 (transformers' forward)."""
    arange = tape.alloc(("s",), 8, "arange")
    shifted = tape.alloc(("s",), 8, "positions")
    del arange
    return shifted


def masks(model: Model) -> Tensor | None:
    """The one mask of a decoder whose blocks are all of one kind."""
    if model.structure.layer_kinds[0].startswith("sliding"):
        return sliding_causal_mask(model)
    return causal_mask(model)


def rms_norm(block: Block, x: Tensor, name: str) -> Tensor:
    """LlamaRMSNorm: the mean square in fp32, the result back in the input's dtype, times the weight."""
    tape = block.model.tape
    with tape.module(name):
        itemsize = x.itemsize
        hidden = tape.cast(x, 4)
        variance = ops.mean_last(tape, ops.pow_scalar(tape, hidden))
        hidden = ops.mul(tape, hidden, ops.rsqrt(tape, ops.shift(tape, variance)))
        return ops.mul(tape, block.weight(f"{name}.weight")[1], tape.cast(hidden, itemsize), x.shape)


def attend(
    model: Model,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    *,
    heads_first: bool = False,
    soft_cap: bool = False,
) -> Tensor:
    """Attention over (b, heads, s, d), fused or eager; the result is (b, s, q).

    ``heads_first``: q and k were made contiguous over heads (by a concatenation), not viewed from rows of tokens.
    ``soft_cap``: eager scores pass through cap * tanh(scores / cap); fused attention leaves the cap out.
    """
    return attention_and_weights(model, q, k, v, mask, heads_first=heads_first, soft_cap=soft_cap)[0]


def attention_and_weights(
    model: Model,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    *,
    heads_first: bool = False,
    soft_cap: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The same with the probabilities, which eager attention returns and a block's frame keeps to its end."""
    tape, structure = model.tape, model.structure
    if structure.attention == "eager":
        return eager_attention(model, q, k, v, mask, heads_first=heads_first, soft_cap=soft_cap)
    grouped, kernel, repeated = structure.grouped, structure.kernel, False
    if mask is not None:
        repeated = grouped
        k, v = repeat_kv(model, k), repeat_kv(model, v)
        grouped, kernel = False, structure.masked_kernel
    out = scaled_dot_product(
        tape, q, k, v,
        kernel=kernel,
        grouped=grouped,
        mask=mask,
        causal=not model.extra("encoder"),
        heads_first=heads_first,
        repeated=repeated,
        drops=bool(model.drops("attention")),
        pads=structure.pads_heads,
    )  # fmt: skip
    in_order = not heads_first or "heads" in tape.ones  # cuDNN's and flash's output lies in memory as q does
    if (kernel in ("cudnn", "flash") and not in_order) or (kernel == "flash" and structure.pads_heads):
        out = ops.clone(tape, out)
    return tape.view(out, ("b", "s", "q")), None


def value_copies(model: Model, mask: Tensor | None) -> bool:
    """Whether the gradient of v arrives contiguous over heads, so that viewing it as rows of tokens copies it."""
    structure = model.structure
    masked = mask is not None
    if structure.one_head:
        return False
    repeated = structure.grouped and masked
    return structure.unfused(masked=masked) or repeated or structure.filled_up(masked=masked)


def repeat_kv(model: Model, x: Tensor) -> Tensor:
    """Keys or values copied to every query head of their group; their gradients are summed back.

    A single head is not copied: expanding it is a view over all query heads.
    """
    if not model.structure.grouped:
        return x
    tape, shape, itemsize = model.tape, x.shape, x.itemsize

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        return [tape.alloc(shape, itemsize, "repeat_kv backward")]

    if not model.structure.one_head:
        return tape.op("repeat_kv", [x], QUERY, itemsize, backward)
    out = Tensor(x.memory, QUERY, itemsize, view=True)
    if tape.wants_grad(x):
        out.node = tape.node("expand", [x], backward)
    return out


def eager_attention(
    model: Model,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    *,
    heads_first: bool = False,
    soft_cap: bool = False,
) -> tuple[Tensor, Tensor]:
    """transformers' eager_attention_forward of the Llama kind: every score is a tensor, softmax runs in fp32."""
    tape = model.tape
    width = q.itemsize
    keys = repeat_kv(model, k)
    values = repeat_kv(model, v)
    grouped, expanded = model.structure.grouped, model.structure.grouped and model.structure.one_head
    # autocast's copy of a single expanded head is contiguous
    copied = tape.autocast not in (0, keys.itemsize)
    key_copies = not copied if expanded else not (grouped or heads_first)
    copies = (not heads_first, key_copies)
    weights = ops.scale(tape, ops.matmul(tape, q, keys, SCORES, copies=copies))
    if soft_cap:
        weights = ops.scale(tape, weights, "soft cap")
        weights = ops.unary(tape, "tanh", weights, saves_input=False)
        weights = ops.scale(tape, weights, "soft cap")
    if mask is not None:
        weights = ops.add(tape, weights, mask)
    weights = tape.cast(ops.softmax(tape, weights, wide=True, fp16=model.structure.loss_scaling), width)
    weights = ops.dropout(tape, weights, model.drops("attention"))
    output = ops.matmul(tape, weights, values, QUERY, copies=(False, expanded or not grouped))
    output = ops.merged_heads(tape, output)
    return tape.view(output, ("b", "s", "q")), weights


def wanting_gradients(model: Model, embedded: Tensor) -> Tensor:
    """The token embeddings, of which PEFT wants gradients where blocks are checkpointed; they reach nothing."""
    if model.structure.input_gradients and embedded.node is None:
        node = model.tape.node("input gradients", [], _drop)
        assert embedded.memory is not None
        node.saved.append(embedded.memory)
        model.tape.leaf = embedded.node = node
    return embedded


def _drop(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
    return []


@dataclass(frozen=True, slots=True)
class ByKind:
    """Something that blocks share by their kind: each is given, and its checkpoint keeps, its own kind's."""

    values: dict[str, Any]


def _given(parameters: Block, shared: tuple[object, ...]) -> list[object]:
    return [part.values[parameters.kind] if isinstance(part, ByKind) else part for part in shared]


def run_blocks(
    model: Model, hidden: Tensor | list[Tensor], block: Callable[..., Tensor], *shared: object
) -> Tensor:
    """Every block in turn, checkpointed or not, with a boundary before each.

    ``shared`` goes to every block, or of a `ByKind` the value of its kind; a checkpoint keeps it for its second
    run. A list of one tensor hands it over: where the source rebinds its name in the loop, the caller must not
    keep it.
    """
    tape = model.tape
    if isinstance(hidden, list):
        hidden = hidden.pop()
    mode = model.structure.checkpointing
    if model.sharding is not None:
        block = partial(_sharded, block)
    if mode == "sqrt":
        for segment in model.segments():
            own = [_of_kind(parameters, shared) for parameters in segment]
            hidden = tape.checkpoint(_segment, block, segment, own, hidden, is_segment=True)
    else:
        for parameters in model.blocks:
            arguments = _of_kind(parameters, shared)
            with tape.entering("forward", parameters.index):
                if mode == "none":
                    hidden = block(parameters, hidden, *arguments)
                else:
                    selective = mode == "selective"
                    hidden = tape.checkpoint(block, parameters, hidden, *arguments, selective=selective)
    tape.block = len(model.blocks)
    tape.boundary(("forward", tape.block))
    return hidden


def _sharded(block: Callable[..., Tensor], parameters: Block, hidden: Tensor, *shared: object) -> Tensor:
    """A block under FSDP: gathered before it runs, reduced after its backward.

    The second run of a checkpoint finds the parameters gathered and leaves them so.
    """
    model = parameters.model
    sharding, tape = model.sharding, model.tape
    assert sharding is not None
    group = sharding.order[parameters.index]
    if sharding.casts:
        shared = tuple(_narrowed(tape, each) for each in shared)
    again = tape.recomputing
    if not again:
        sharding.unshard(group)
    hidden = before(tape, hidden, partial(sharding.after_backward, group))
    out = block(parameters, hidden, *shared)
    if not again:
        sharding.reshard(group)
    return before(tape, out, partial(sharding.before_backward, group))


def _narrowed(tape: Tape, given: object) -> object:
    """MixedPrecisionPolicy.cast_forward_inputs: fp32 tensors among a block's arguments become 16-bit."""
    if isinstance(given, tuple):
        return tuple(_narrowed(tape, each) for each in given)
    return tape.cast(given, 2) if isinstance(given, Tensor) and given.itemsize == 4 else given


def _segment(
    block: Callable[..., Tensor], segment: list[Block], own: list[tuple[object, ...]], hidden: Tensor
) -> Tensor:
    tape = segment[0].model.tape
    for parameters, arguments in zip(segment, own, strict=True):
        with tape.entering("again" if tape.recomputing else "forward", parameters.index):
            hidden = block(parameters, hidden, *arguments)
    return hidden


def _of_kind(block: Block, shared: tuple[object, ...]) -> tuple[object, ...]:
    return tuple(each.values[block.kind] if isinstance(each, ByKind) else each for each in shared)


def language_loss(model: Model, hidden: Tensor, head: tuple[str, Tensor]) -> Tensor:
    """The head's logits and their loss, or both fused in chunks."""
    tape = model.tape
    if model.structure.loss == "liger_fused":
        with tape.filling("logits"), tape.module("loss"):
            return fused_linear_cross_entropy(tape, hidden, head, "v", model.structure.batch_of_one)
    with tape.filling("logits"), tape.module("lm_head"):
        logits = ops.linear(tape, hidden, head, "v")
    return causal_loss(model, logits)


def causal_loss(model: Model, logits: Tensor) -> Tensor:
    """transformers' ForCausalLMLoss: fp32 logits, labels shifted by one, log_softmax and nll_loss."""
    tape = model.tape
    with tape.filling("logits"), tape.module("loss"):
        wide = tape.cast(logits, 4)
        padded = tape.alloc(("b", "s_plus_1"), 8, "labels padded")
        # labels[..., 1:] of one row is contiguous as it stands
        labels = (
            padded.alias() if model.structure.batch_of_one else tape.alloc(("b", "s"), 8, "labels shifted")
        )
        loss = cross_entropy(tape, wide, labels)
        del wide, padded
    return loss


def cross_entropy(tape: Tape, logits: Tensor, labels: Tensor) -> Tensor:
    """log_softmax, which saves its result, then nll_loss, which saves it again and a total weight."""
    shape, itemsize = logits.shape, logits.itemsize

    def log_softmax_backward(tape, grads, needs):  # type: ignore[no-untyped-def]
        return [tape.alloc(shape, itemsize, "log_softmax backward")]

    scores = tape.op("log_softmax", [logits], shape, itemsize, log_softmax_backward, saves_output=True)

    def nll_backward(tape, grads, needs):  # type: ignore[no-untyped-def]
        return [tape.alloc(shape, itemsize, "nll_loss backward")]

    node = tape.node("nll_loss", [scores], nll_backward)
    tape.save(node, scores, labels)
    loss = tape.alloc((), 4, "nll_loss")
    total = tape.alloc((), 4, "nll_loss total weight")
    loss.node = node
    tape.save(node, total)
    return loss
