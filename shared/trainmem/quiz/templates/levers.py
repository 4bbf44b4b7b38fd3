"""Levers: which bucket each one moves, by how much, and at what price."""

from __future__ import annotations

from typing import Final

from trainmem.buckets import Bucket
from trainmem.quiz.cases import GATED, LARGE, PLAIN, ROTARY, SMALL
from trainmem.quiz.draw import Draw, Template, template
from trainmem.quiz.question import Option, Question, Slip, Step
from trainmem.units import format_gib
from trainmem.whiteboard.activations import layer_activation_bytes, saved_by_block
from trainmem.whiteboard.checkpointing import sqrt_segment

__all__ = ["TEMPLATES"]

_TOPIC: Final = "levers"

_LEVERS: list[tuple[str, dict[str, object]]] = [
    ("checkpointing every block", {"checkpointing": "full"}),
    ("8-bit AdamW", {"optimizer": "adamw8bit"}),
    ("a fused loss that works in chunks (Liger)", {"loss": "liger_fused"}),
    ("half the micro batch, twice the accumulation", {"micro_batch": 4, "accumulation": 2}),
]


@template("levers.checkpointing", _TOPIC, 2)
def checkpointing(draw: Draw) -> Question:
    """What checkpointing every block leaves."""
    case = draw.case(PLAIN, micro_batch=[4, 8, 16], sequence_length=1024, precision="amp_bf16")
    a, job = case.architecture, case.job.with_(checkpointing="full")
    value = case.bytes("activations", checkpointing="full")
    one = layer_activation_bytes(saved_by_block(a), job.micro_batch * job.sequence_length)
    return draw.number(
        job,
        setting=[case.shape_line, case.batch_line, "16-bit activations, every block checkpointed"],
        prompt="How much do activations still take, at the most?",
        value=value,
        unit="GiB",
        slips=[
            Slip(
                value - one,
                "forgot the recomputed block",
                "While a block is recomputed, all it saves is there.",
            ),
            Slip(one, "forgot the checkpoints", "Each block's input is kept: 2 s b h bytes a block."),
            Slip(
                case.bytes("activations") - value, "gave what is saved", "That is what goes, not what stays."
            ),
            Slip(case.bytes("activations"), "changed nothing", "That is without checkpointing."),
        ],
        steps=case.terms("activations", checkpointing="full"),
        mistake="2 s b h for each of L inputs, and one block of 34 s b h being recomputed.",
    )


@template("levers.checkpointing-saves", _TOPIC, 2)
def checkpointing_saves(draw: Draw) -> Question:
    """What checkpointing every block saves."""
    case = draw.case([*PLAIN, *GATED[:3]], micro_batch=[4, 8], sequence_length=1024, precision="bf16")
    before, after = case.bytes("activations"), case.bytes("activations", checkpointing="full")
    return draw.number(
        case.job.with_(checkpointing="full"),
        setting=[case.shape_line, case.batch_line, f"blocks save {format_gib(before)} without checkpointing"],
        prompt="How much does checkpointing every block save?",
        value=before - after,
        unit="GiB",
        slips=[
            Slip(after, "gave what stays", "That is what is still kept."),
            Slip(
                before,
                "thought all of it goes",
                "The blocks' inputs stay, and one block at a time comes back.",
            ),
        ],
        steps=[
            *case.terms("activations"),
            *case.terms("activations", checkpointing="full"),
            Step("saved", f"{format_gib(before)} − {format_gib(after)} = {format_gib(before - after)}"),
        ],
        mistake="It touches activations only: logits, weights, gradients and moments stay as they are.",
    )


@template("levers.sqrt", _TOPIC, 3)
def sqrt(draw: Draw) -> Question:
    """Checkpoints every sqrt(L) blocks."""
    case = draw.case(PLAIN[1:], micro_batch=[4, 8], sequence_length=1024, precision="amp_bf16")
    a = case.architecture
    value = case.bytes("activations", checkpointing="sqrt")
    k = sqrt_segment(a.layers)
    return draw.number(
        case.job.with_(checkpointing="sqrt"),
        setting=[case.shape_line, case.batch_line, f"a checkpoint every {k} blocks, 16-bit activations"],
        prompt="How much do activations take at the most?",
        value=value,
        unit="GiB",
        slips=[
            Slip(
                case.bytes("activations", checkpointing="full"),
                "recomputed one block only",
                f"A whole segment of {k} blocks is recomputed at a time.",
            ),
            Slip(
                value - case.term_bytes("checkpoints, the inputs of blocks", checkpointing="sqrt"),
                "forgot the checkpoints",
                "The segments' inputs are kept too.",
            ),
        ],
        steps=case.terms("activations", checkpointing="sqrt"),
        mistake="Fewer checkpoints, but a longer stretch alive at once: for a block of 34 s b h that is "
        "a bad trade.",
    )


@template("levers.bucket", _TOPIC, 1)
def bucket(draw: Draw) -> Question:
    """Which bucket a lever shrinks most."""
    case = draw.case(PLAIN, micro_batch=8, sequence_length=1024, precision="amp_bf16")
    lever, changes = draw.choice(_LEVERS)
    before, after = case.board(), case.board(**changes)
    watched: tuple[Bucket, ...] = ("weights", "gradients", "optimizer_state", "activations", "logits")
    saved = {b: before.buckets[b] - after.buckets[b] for b in watched}
    right = max(saved, key=lambda b: saved[b])
    others = sorted((b for b in watched if b != right), key=lambda b: saved[b], reverse=True)[:3]
    return draw.options(
        case.job.with_(**changes),
        setting=[case.size_line, case.batch_line, case.recipe_line, case.levers_line],
        prompt=f"The job gets {lever}. Which bucket loses the most bytes?",
        right=Option(right.replace("_", " "), f"It loses {format_gib(saved[right])}."),
        wrong=[
            Option(
                b.replace("_", " "),
                f"It loses {format_gib(saved[b])}." if saved[b] > 0 else "It does not change at all.",
            )
            for b in others
        ],
        steps=[
            Step(b.replace("_", " "), f"{format_gib(before.buckets[b])}, then {format_gib(after.buckets[b])}")
            for b in watched
        ],
        mistake="Each lever has one bucket it is for; ask which bucket is large before you pull.",
        by_text=True,
    )


@template("levers.price", _TOPIC, 1)
def price(draw: Draw) -> Question:
    """What checkpointing costs in time."""
    case = draw.case(SMALL, micro_batch=8, checkpointing="full")
    return draw.options(
        case.job,
        setting=["backward costs about twice the forward", "every block checkpointed"],
        prompt="By how much does the arithmetic of a step grow?",
        right=Option("by about a third", "One more forward on top of forward and backward: 4 units for 3."),
        wrong=[
            Option("not at all", "Every block's forward runs a second time."),
            Option("by about a tenth", "The repeated forward is a third of the old step."),
            Option("it doubles", "Only the forward is repeated, not the backward pass."),
        ],
        place=2,
        steps=[Step("step", "(1 forward + 1 again + 2 backward) / (1 + 2) = 4 / 3")],
        mistake="A third in arithmetic; measured on an H200, GPT-2 774M lost 25% (0.221 to 0.277 s a step).",
    )


@template("levers.micro-batch", _TOPIC, 2)
def micro_batch(draw: Draw) -> Question:
    """Trading micro batch for accumulation."""
    case = draw.case(PLAIN, micro_batch=8, sequence_length=1024, precision="amp_bf16")
    k = draw.choice([2, 4, 8])
    changes = {"micro_batch": 8 // k, "accumulation": k}
    before, after = case.bytes("activations", "logits"), case.bytes("activations", "logits", **changes)
    return draw.number(
        case.job.with_(**changes),
        setting=[case.model_line, case.batch_line, case.recipe_line, case.levers_line],
        prompt=f"Micro batch 8 becomes {8 // k} with {k} micro batches a step. "
        "How much does the whiteboard's total fall?",
        value=before - after,
        unit="GiB",
        slips=[
            Slip(after, "gave what stays", "That is what activations and logits still take."),
            Slip(
                case.bytes("activations") - case.bytes("activations", **changes),
                "forgot the logits",
                "Logits follow the micro batch as well.",
            ),
            Slip(before, "counted the global batch", "One micro batch's activations are still there."),
        ],
        steps=[
            *case.terms("activations", "logits"),
            *case.terms("activations", "logits", **changes),
            Step("saved", f"{format_gib(before)} − {format_gib(after)} = {format_gib(before - after)}"),
        ],
        mistake="The first lever to pull: the same gradient, at the price of smaller matrix products.",
    )


@template("levers.fused-attention", _TOPIC, 2)
def fused_attention(draw: Draw) -> Question:
    """What fused attention saves."""
    case = draw.case(
        ROTARY, micro_batch=[2, 4], sequence_length=[1024, 2048], precision="amp_bf16", attention="eager"
    )
    before, after = case.bytes("activations"), case.bytes("activations", attention="sdpa")
    a = case.architecture
    return draw.number(
        case.job.with_(attention="sdpa"),
        setting=[case.shape_line, case.batch_line, "16-bit activations, eager attention with dropout"],
        prompt="How much does fused attention save?",
        value=before - after,
        unit="GiB",
        slips=[
            Slip(before, "thought all activations go", "Only the scores go; 34 s b h a block stays."),
            Slip(after, "gave what stays", "That is what blocks still save."),
            Slip((before - after) / a.heads, "forgot the heads", "Every head has its own scores."),
        ],
        steps=case.terms("activations"),
        mistake="5 a s² b a block, the same mathematics, and faster: there is no price.",
    )


@template("levers.fused-loss", _TOPIC, 2)
def fused_loss(draw: Draw) -> Question:
    """What a chunked loss saves."""
    models = [SMALL[4], SMALL[5], GATED[1]]
    case = draw.case(models, micro_batch=[4, 8], sequence_length=2048, precision="bf16", checkpointing="full")
    before, after = case.bytes("logits"), case.bytes("logits", loss="liger_fused")
    return draw.number(
        case.job.with_(loss="liger_fused"),
        setting=[
            f"{case.model.title}: vocabulary {case.architecture.vocab_size:,}, "
            f"hidden size {case.architecture.hidden_size:,}",
            case.batch_line,
            "10 bytes a logit, every block checkpointed",
        ],
        prompt="A fused loss computes the logits chunk by chunk. About how much does it save?",
        value=before - after,
        unit="GiB",
        tolerance=0.08,
        slips=[
            Slip(before / 5, "counted 16-bit scores only", "The fp32 copy and its gradient go too."),
            Slip(after, "gave what stays", "That is one chunk and the gradient of its input."),
        ],
        steps=[
            *case.terms("logits"),
            *case.terms("logits", loss="liger_fused"),
            Step("saved", f"{format_gib(before)} − {format_gib(after)} = {format_gib(before - after)}"),
        ],
        mistake="With checkpointing and a large vocabulary the logits are the peak: the loss is the lever.",
    )


@template("levers.fused-step", _TOPIC, 3)
def fused_step(draw: Draw) -> Question:
    """The foreach step's temporary."""
    case = draw.case(LARGE[:3], micro_batch=1, sequence_length=1024, precision="bf16", checkpointing="full")
    value = case.parameters * 2
    return draw.number(
        case.job.with_(optimizer="adamw_fused"),
        setting=[
            case.size_line,
            case.batch_line,
            case.recipe_line,
            "every block checkpointed; the peak is inside optimizer.step()",
        ],
        prompt="foreach AdamW takes the square roots of all second moments at once. "
        "How much does fused AdamW save?",
        value=value,
        unit="GiB",
        slips=[
            Slip(value * 2, "took it for fp32", "In pure bf16 the moments, and so their roots, are bf16."),
            Slip(value * 4, "took all moments", "Fused AdamW keeps the same two moments."),
        ],
        steps=[Step("the temporary", f"{case.parameters:,} × 2 B = {format_gib(value)}")],
        mistake="With checkpointing a large model peaks in the optimizer step, where no activation lever "
        "helps.",
    )


@template("levers.identical", _TOPIC, 2)
def identical(draw: Draw) -> Question:
    """Which lever changes the result."""
    case = draw.case(PLAIN, micro_batch=8, sequence_length=1024)
    changing = draw.choice(
        [
            ("8-bit AdamW", "Its moments are quantised, so updates differ a little."),
            ("pure bf16 instead of AMP", "Weights are rounded to 8 bits of significand after each update."),
            ("LoRA", "It trains fewer parameters: another optimisation problem."),
            ("Adafactor", "It replaces the second moment by an outer product: other updates."),
        ]
    )
    same = [
        Option("activation checkpointing", "It recomputes the same values."),
        Option("accumulation over smaller micro batches", "The same gradient is summed in parts."),
        Option("ZeRO-3", "The same bytes, kept in parts on different ranks."),
        Option("CPU offload of the optimizer", "The same update, computed elsewhere."),
        Option("fused attention", "The same softmax, computed tile by tile."),
    ]
    draw.random.shuffle(same)
    return draw.options(
        case.job.with_(checkpointing="full"),
        setting=[case.size_line, case.recipe_line],
        prompt="Which of these changes what is learnt, beyond rounding in the order of sums?",
        right=Option(*changing),
        wrong=[Option(o.text, f"It changes memory and time, not the mathematics. {o.why}") for o in same[:3]],
        steps=[
            Step("identical mathematics", "checkpointing, accumulation, fused kernels, sharding, offload")
        ],
        mistake="Pull the levers that change nothing first.",
    )


@template("levers.share-of-total", _TOPIC, 2)
def share_of_total(draw: Draw) -> Question:
    """What a lever on the optimizer state does to a job that activations fill."""
    case = draw.case(PLAIN, micro_batch=[8, 16], sequence_length=1024, precision="amp_bf16")
    before, after = case.bytes(), case.bytes(optimizer="adamw8bit")
    value = 100 * (before - after) / before
    return draw.number(
        case.job.with_(optimizer="adamw8bit"),
        setting=[case.model_line, case.batch_line, case.recipe_line, case.levers_line],
        prompt="By what percentage does 8-bit AdamW lower the whiteboard's total?",
        value=value,
        unit="%",
        tolerance=0.1,
        slips=[
            Slip(
                75.0,
                "took the optimizer state for the whole",
                "The optimizer state falls by 75%, the total does not.",
            ),
            Slip(100 - value, "gave what stays", "That is what is left."),
            Slip(value / 2, "forgot the second Adam moment", "Both moments shrink, from 8 bytes to about 2."),
        ],
        steps=[
            Step("total", f"{format_gib(before)}, then {format_gib(after)}"),
            Step("saved", f"{format_gib(before - after)} / {format_gib(before)} = {value:.0f}%"),
        ],
        mistake="Look at the largest bucket first; here it is not the optimizer's.",
    )


@template("levers.combined", _TOPIC, 3)
def combined(draw: Draw) -> Question:
    """Two levers together."""
    case = draw.case(PLAIN[1:], micro_batch=8, sequence_length=1024, precision="amp_bf16")
    value = case.bytes(checkpointing="full", optimizer="adamw8bit")
    return draw.number(
        case.job.with_(checkpointing="full", optimizer="adamw8bit"),
        setting=[case.model_line, case.batch_line, case.recipe_line, case.levers_line],
        prompt="Checkpoint every block and use 8-bit AdamW. What is the whiteboard's total then?",
        value=value,
        unit="GiB",
        slips=[
            Slip(
                case.bytes(checkpointing="full"), "left AdamW as it is", "That is with checkpointing alone."
            ),
            Slip(
                case.bytes(optimizer="adamw8bit"),
                "left activations as they are",
                "That is with 8-bit state alone.",
            ),
            Slip(value - case.bytes("logits"), "forgot the logits", "Neither lever touches them."),
            Slip(
                value - case.bytes("cast_cache"),
                "forgot the cast copies",
                "AMP still keeps 16-bit copies of the weights.",
            ),
        ],
        steps=case.terms(checkpointing="full", optimizer="adamw8bit"),
        mistake="Different buckets, so the savings add: sum the board anew rather than subtracting from "
        "memory.",
    )


@template("levers.which-moment", _TOPIC, 3)
def which_moment(draw: Draw) -> Question:
    """Where the peak moves to once blocks are checkpointed."""
    case = draw.case(LARGE[:3], micro_batch=1, sequence_length=1024, precision="bf16", checkpointing="full")
    gap = case.board().gap
    return draw.options(
        case.job,
        setting=[case.size_line, case.batch_line, "foreach AdamW; pure bf16", case.levers_line],
        prompt="At which instant is this job's memory highest?",
        right=Option(
            "inside the optimizer step",
            "Gradients and moments are whole then, and foreach adds a temporary of the weights' size.",
        ),
        wrong=[
            Option(
                "at the start of backward",
                "Activations and logits are small here, and no gradient exists yet.",
            ),
            Option(
                "while a block is recomputed",
                "One block of activations is small against weights, gradients and moments.",
            ),
            Option("in the first forward", "Not even the moments exist then."),
        ],
        steps=[Step(item.name, item.substituted) for item in gap.items if item.bytes > 1 << 27][:4]
        or [Step("peak", gap.instant)],
        mistake="After checkpointing ask again where the peak is: the next lever is fused or 8-bit AdamW.",
    )


TEMPLATES: tuple[Template, ...] = (
    checkpointing,
    checkpointing_saves,
    sqrt,
    bucket,
    price,
    micro_batch,
    fused_attention,
    fused_loss,
    fused_step,
    identical,
    share_of_total,
    combined,
    which_moment,
)
