"""Activations: 34 s b h, the scores' square, gated blocks, and the logits."""

from __future__ import annotations

from typing import Final

from trainmem.quiz.cases import GATED, PLAIN, ROTARY, SMALL
from trainmem.quiz.draw import Draw, Template, template
from trainmem.quiz.question import Option, Question, Slip, Step
from trainmem.units import GIB, KIB, MIB, format_gib
from trainmem.whiteboard.activations import (
    layer_activation_bytes,
    layer_coefficient,
    saved_by_block,
    score_bytes,
    scores_overtake_at_tokens,
)
from trainmem.whiteboard.logits import BYTES_PER_LOGIT, logits_bytes
from trainmem.whiteboard.term import factor

__all__ = ["TEMPLATES"]

_TOPIC: Final = "activations"


@template("activations.block", _TOPIC, 1)
def block(draw: Draw) -> Question:
    """One textbook block."""
    case = draw.case(PLAIN, micro_batch=[2, 4, 8, 16], sequence_length=[512, 1024])
    a, job = case.architecture, case.job
    tokens = job.micro_batch * job.sequence_length
    value = layer_activation_bytes(saved_by_block(a), tokens)
    return draw.number(
        job,
        setting=[case.shape_line, case.batch_line, "16-bit activations, fused attention"],
        prompt="How much does one block save for backward?",
        value=value,
        unit="MiB",
        slips=[
            Slip(value / job.micro_batch, "forgot the batch", "That is one sequence."),
            Slip(value * 2, "counted 2 bytes twice", "The 34 already counts bytes, not elements."),
            Slip(value / 34, "forgot the 34", "A block saves about 17 tensors of the size of its input."),
            Slip(value * a.layers, "counted all blocks", "That is all of them; the question is about one."),
        ],
        steps=[
            Step(
                "one block",
                f"34 × {job.sequence_length:,} × {job.micro_batch} × {a.hidden_size:,} B = "
                f"{value / MIB:,.0f} MiB",
            )
        ],
        mistake="34 s b h bytes: attention 11, MLP 19, the two norms 4.",
    )


@template("activations.all-blocks", _TOPIC, 1)
def all_blocks(draw: Draw) -> Question:
    """All blocks of a model."""
    case = draw.case(PLAIN, micro_batch=[2, 4, 8, 16], sequence_length=[512, 1024], accumulation=[1, 4])
    value, k = case.bytes("activations"), case.job.accumulation
    return draw.number(
        case.job,
        setting=[case.shape_line, case.batch_line, "16-bit activations, fused attention"],
        prompt="How much do all blocks save for backward at the end of the forward pass?",
        value=value,
        unit="GiB",
        slips=[
            *(
                [
                    Slip(
                        value * k,
                        "counted the global batch",
                        "Each micro batch frees its activations before the next.",
                    )
                ]
                if k > 1
                else []
            ),
            Slip(value / case.job.micro_batch, "forgot the batch", "That is one sequence."),
            Slip(value * 2, "counted 2 bytes twice", "The 34 already counts bytes, not elements."),
        ],
        steps=case.terms("activations"),
        mistake="L × 34 s b h, with the micro batch: accumulation does not add to it.",
    )


@template("activations.scores", _TOPIC, 2)
def scores(draw: Draw) -> Question:
    """Eager attention's scores."""
    case = draw.case(
        ROTARY,
        micro_batch=[1, 2, 4],
        sequence_length=[1024, 2048],
        attention="eager",
        checkpointing="none",
    )
    a, job = case.architecture, case.job.with_(attention="eager")
    each = score_bytes(a.heads, job.micro_batch, job.sequence_length)
    value = a.layers * each
    return draw.number(
        job,
        setting=[case.shape_line, case.batch_line, "16-bit activations, eager attention with dropout"],
        prompt="How much do the score matrices of all blocks take, everything else apart?",
        value=value,
        unit="GiB",
        slips=[
            Slip(each, "counted one block", "Each block saves its own scores."),
            Slip(value / a.heads, "forgot the heads", "Every head has its own s × s matrix."),
            Slip(
                value * 2 / 5,
                "counted the softmax only",
                "The dropout mask and the dropped-out copy are saved too.",
            ),
            Slip(value / job.micro_batch, "forgot the batch", "That is one sequence."),
        ],
        steps=[
            Step(
                "scores",
                f"{a.layers} × 5 × {a.heads} × {job.sequence_length:,}² × {job.micro_batch} B = "
                f"{format_gib(value)}",
            )
        ],
        mistake="5 a s² b bytes a block: quadratic in length, and not one byte of it with fused attention.",
    )


@template("activations.crossover", _TOPIC, 2)
def crossover(draw: Draw) -> Question:
    """Where the scores overtake the rest of the block."""
    case = draw.case(PLAIN, micro_batch=1, attention="eager")
    a = case.architecture
    value = scores_overtake_at_tokens(a)
    return draw.number(
        case.job,
        setting=[case.shape_line, "eager attention"],
        prompt="From which sequence length on do the scores take more than everything else a block saves?",
        value=value,
        unit="tokens",
        slips=[
            Slip(value * 5, "forgot the 5", "A score costs 5 bytes: softmax 2, mask 1, dropped-out copy 2."),
            Slip(value / 34, "forgot the 34", "The rest of the block costs 34 s b h."),
            Slip(value * a.heads, "forgot the heads", "There are a score matrices, one for each head."),
        ],
        steps=[
            Step("34 s b h = 5 a s² b", "s = 34 h / 5 a"),
            Step("with the numbers", f"34 × {a.hidden_size:,} / (5 × {a.heads}) = {value:,.0f} tokens"),
        ],
        mistake="h / a is the head size, so it is 6.8 head sizes: a few hundred tokens for most models.",
    )


_TIMES = ("as much as before", "twice as much", "four times as much", "eight times as much")
_BESIDES = "what blocks save besides the score matrices"
_WHY_LINEAR = {
    _TIMES[0]: "There are twice as many tokens, and each has its own.",
    _TIMES[1]: "It has a fixed number of bytes a token.",
    _TIMES[2]: "That is the score matrices, which have a number for each pair of tokens.",
    _TIMES[3]: "Nothing grows with the cube of the length.",
}
_WHY_QUADRATIC = {
    _TIMES[0]: "Each token has a row and a column in them.",
    _TIMES[1]: "The rows double, and the columns do too.",
    _TIMES[2]: "They have one number for each pair of tokens.",
    _TIMES[3]: "Rows and columns double, which makes two times two.",
}


@template("activations.longer", _TOPIC, 1)
def longer(draw: Draw) -> Question:
    """What doubling the length does."""
    case = draw.case(ROTARY, micro_batch=1, sequence_length=[512, 1024], attention="eager")
    a, s = case.architecture, case.job.sequence_length
    what = draw.choice(["the score matrices", _BESIDES, "the logits"])
    right = _TIMES[2] if what == "the score matrices" else _TIMES[1]
    why = _WHY_QUADRATIC if right == _TIMES[2] else _WHY_LINEAR
    return draw.options(
        case.job,
        setting=[
            case.shape_line,
            "eager attention",
            f"sequence length {s:,}, then {2 * s:,}; same micro batch",
        ],
        prompt=f"How much memory goes to {what} then?",
        right=Option(right, why[right]),
        wrong=[Option(option, why[option]) for option in _TIMES if option != right],
        place=_TIMES.index(right),
        steps=[
            Step("scores", f"5 × {a.heads} × s² × b B a block"),
            Step("rest of the block", f"34 × s × b × {a.hidden_size:,} B"),
            Step("logits", f"s × b × {a.vocab_size:,} × {BYTES_PER_LOGIT} B"),
        ],
        mistake="Only the scores are quadratic, and fused attention never keeps them.",
    )


@template("activations.gated", _TOPIC, 2)
def gated(draw: Draw) -> Question:
    """The coefficient of a Llama block."""
    case = draw.case(GATED, micro_batch=1, sequence_length=2048, precision="bf16")
    a = case.architecture
    items = saved_by_block(a)
    h, f, k = a.hidden_size, a.intermediate_size, a.kv_heads * a.head_dim
    value = layer_coefficient(items, h)
    return draw.number(
        case.job,
        setting=[case.shape_line, "16-bit activations, fused attention, no dropout"],
        prompt="A block of this model saves c × s b h bytes for backward. What is c?",
        value=value,
        unit="count",
        tolerance=0.03,
        slips=[
            Slip(34, "took the plain block", "34 is for a plain MLP with 4 h; a gate adds two more tensors."),
            Slip(
                value - 2 * 2 * f / h,
                "forgot the gate",
                "Gate, up, activated gate and product are four tensors.",
            ),
            Slip(
                value - 2 * f / h,
                "forgot one of the MLP's tensors",
                "Gate, up, activated gate, product: four.",
            ),
            Slip(
                value + 4 * (1 - k / h),
                "forgot grouped heads",
                "Keys and values are narrower than the hidden size.",
            ),
            Slip(value / 2, "counted elements", "Each element is 2 bytes."),
        ],
        steps=[
            *(
                Step(i.what, f"{i.elements / h:.2f} h × {i.element_bytes} B = {i.bytes_per_token / h:.2f} h")
                for i in items
            ),
            Step("together", f"12 + 4 × {k / h:g} + 8 × {f / h:.2f} = {factor(round(value, 2))}"),
        ],
        mistake="12 + 4 k/h + 8 f/h; people quote 46 for f = 4 h and 42 for f = 3.5 h.",
    )


@template("activations.per-token", _TOPIC, 2)
def per_token(draw: Draw) -> Question:
    """Activation memory of a token."""
    case = draw.case([*PLAIN, *GATED[:3]], micro_batch=1, sequence_length=1024, precision="bf16")
    a = case.architecture
    c = layer_coefficient(saved_by_block(a), a.hidden_size)
    value = a.layers * layer_activation_bytes(saved_by_block(a), 1)
    return draw.number(
        case.job,
        setting=[case.shape_line, f"a block saves {factor(round(c, 2))} s b h bytes"],
        prompt="How much activation memory does each further token in the micro batch cost, logits apart?",
        value=value,
        unit="KiB",
        slips=[
            Slip(value / a.layers, "counted one block", "Every block saves its own."),
            Slip(value * 2, "counted 2 bytes twice", "The coefficient already counts bytes."),
            Slip(
                value + a.vocab_size * BYTES_PER_LOGIT,
                "counted the logits",
                "That adds the token's scores over the vocabulary.",
            ),
        ],
        steps=[
            Step(
                "a token",
                f"{a.layers} × {factor(round(c, 2))} × {a.hidden_size:,} B = {value / KIB:,.0f} KiB",
            )
        ],
        mistake="With this number in your head, any batch and length is one product away.",
    )


@template("activations.room", _TOPIC, 3)
def room(draw: Draw) -> Question:
    """The micro batch that fits the room left."""
    case = draw.case(PLAIN[:3], micro_batch=1, sequence_length=1024, precision="amp_bf16")
    a = case.architecture
    per_sequence = case.bytes("activations", "logits")
    most = draw.choice([6, 10, 14, 20])
    budget = round((case.bytes() - per_sequence + (most + 0.5) * per_sequence) / GIB)
    state = case.bytes() - per_sequence
    value = (budget * GIB - state) // per_sequence
    return draw.number(
        case.job.with_(micro_batch=max(1, value)),
        setting=[
            case.model_line,
            "sequence length 1,024",
            case.recipe_line,
            f"{budget} GiB in all",
        ],
        prompt="By the whiteboard, what is the largest micro batch that fits?",
        value=value,
        unit="count",
        tolerance=0.11,
        slips=[
            Slip(
                budget * GIB // per_sequence,
                "forgot what has no tokens",
                "Weights, gradients, moments and casts take their part first.",
            ),
            Slip(
                (budget * GIB - state) // (34 * 1024 * a.hidden_size * a.layers),
                "forgot the logits",
                "A sequence also costs its scores over the vocabulary.",
            ),
        ],
        steps=[
            Step("weights, gradients, moments, casts", f"{a.parameter_count:,} × 18 B = {format_gib(state)}"),
            Step("one sequence", f"activations and logits = {format_gib(per_sequence)}"),
            Step(
                "fits", f"({budget} − {state / GIB:.2f}) / {per_sequence / GIB:.3f}, rounded down = {value}"
            ),
        ],
        mistake="Subtract what does not depend on the batch, then divide by what one sequence costs.",
    )


@template("activations.logits", _TOPIC, 1)
def logits(draw: Draw) -> Question:
    """Logits and loss."""
    case = draw.case(SMALL, micro_batch=[2, 4, 8, 16], sequence_length=[512, 1024], precision="amp_bf16")
    a, job = case.architecture, case.job
    tokens = job.micro_batch * job.sequence_length
    value = logits_bytes(tokens, a.vocab_size)
    return draw.number(
        job,
        setting=[f"{case.model.title}: vocabulary {a.vocab_size:,}", case.batch_line, "10 bytes a logit"],
        prompt="How much do logits and loss take at the start of backward?",
        value=value,
        unit="GiB",
        slips=[
            Slip(
                value / 5, "counted 16-bit scores only", "The fp32 copy and its gradient add 8 bytes a logit."
            ),
            Slip(
                value * 2 / 5,
                "counted one fp32 copy only",
                "The 16-bit scores and the gradient are there too.",
            ),
            Slip(value / job.micro_batch, "forgot the batch", "That is one sequence."),
            Slip(
                tokens * a.hidden_size * 10,
                "took the hidden size",
                "A token has one logit for each word of the vocabulary.",
            ),
        ],
        steps=[
            Step(
                "logits",
                f"{job.sequence_length:,} × {job.micro_batch} × {a.vocab_size:,} × 10 B = "
                f"{format_gib(value)}",
            )
        ],
        mistake="8 to 12 bytes a logit: 16-bit scores, an fp32 copy, and one or two fp32 gradients.",
    )


@template("activations.logits-or-blocks", _TOPIC, 2)
def logits_or_blocks(draw: Draw) -> Question:
    """Which of the two is larger."""
    case = draw.case(
        [*SMALL, *GATED[:3]],
        micro_batch=4,
        sequence_length=1024,
        precision="bf16",
        checkpointing=["none", "full"],
    )
    blocks, scores_ = case.bytes("activations"), case.bytes("logits")
    larger = "what the blocks keep" if blocks > scores_ else "the logits"
    smaller = "the logits" if blocks > scores_ else "what the blocks keep"
    return draw.options(
        case.job,
        setting=[case.shape_line, case.batch_line, "pure bf16", case.levers_line],
        prompt="Which takes more: what the blocks keep for backward, or the logits at 10 bytes each?",
        right=Option(
            larger, f"{format_gib(max(blocks, scores_))} against {format_gib(min(blocks, scores_))}."
        ),
        wrong=[Option(smaller, f"It is only {format_gib(min(blocks, scores_))}.")],
        steps=case.terms("activations", "logits"),
        mistake="Compare L × c × h with 10 V: tokens cancel. Checkpointing leaves about 2 L h and one block.",
        by_text=True,
    )


@template("activations.fused", _TOPIC, 1)
def fused(draw: Draw) -> Question:
    """What fused attention does not keep."""
    case = draw.case(ROTARY, micro_batch=4, sequence_length=[1024, 2048], attention="eager")
    return draw.options(
        case.job,
        setting=[case.shape_line, case.batch_line, "34 s b h + 5 a s² b bytes a block"],
        prompt="Eager attention is replaced by a fused kernel (FlashAttention, cuDNN). What becomes of "
        "the sum?",
        right=Option(
            "5 a s² b goes; 34 s b h stays",
            "The kernel recomputes scores tile by tile in the backward pass; queries, keys, values and "
            "output stay.",
        ),
        wrong=[
            Option(
                "34 s b h goes; 5 a s² b stays", "It is the other way round: scores are what it never writes."
            ),
            Option(
                "both go", "Inputs of linear layers and norms have nothing to do with the attention kernel."
            ),
            Option("5 a s² b is halved", "It is not written to memory at all, except one number a row."),
        ],
        steps=case.terms("activations", attention="eager"),
        mistake="Fused attention saves memory for long sequences; it changes nothing about the MLP.",
    )


@template("activations.fp32", _TOPIC, 2)
def in_fp32(draw: Draw) -> Question:
    """The textbook block in fp32."""
    case = draw.case(PLAIN, micro_batch=4, sequence_length=1024, precision="fp32")
    value = layer_coefficient(saved_by_block(case.architecture, 4), case.architecture.hidden_size)
    return draw.number(
        case.job,
        setting=[
            "a plain block saves 34 s b h bytes with 16-bit activations",
            "2 of the 34 are dropout masks",
        ],
        prompt="What is the coefficient when everything is fp32?",
        value=value,
        unit="count",
        tolerance=0,
        slips=[
            Slip(68, "doubled the masks", "A dropout mask is one byte an element, whatever the precision."),
            Slip(34, "thought it stays", "Every saved tensor but the masks doubles."),
            Slip(64, "dropped the masks", "The masks are still there: 2 bytes."),
        ],
        steps=[Step("everything but masks doubles", "(34 − 2) × 2 + 2 = 66")],
        mistake="This is why autocast to 16 bits pays in activations, although copies of the weights come on top.",
    )


TEMPLATES: tuple[Template, ...] = (
    block,
    all_blocks,
    scores,
    crossover,
    longer,
    gated,
    per_token,
    room,
    logits,
    logits_or_blocks,
    fused,
    in_fp32,
)
