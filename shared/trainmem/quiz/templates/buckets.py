"""Naming the ten buckets: what belongs where, what grows with what, what lives when."""

from __future__ import annotations

from typing import Final

from trainmem.buckets import BUCKET_MEANINGS, Bucket
from trainmem.quiz.cases import GATED, PLAIN, SMALL
from trainmem.quiz.draw import Draw, Template, template
from trainmem.quiz.question import Option, Question, Slip, Step
from trainmem.units import format_gib

__all__ = ["TEMPLATES"]

_TOPIC: Final = "buckets"

_THINGS: tuple[tuple[str, Bucket], ...] = (
    ("the embedding table", "weights"),
    ("LayerNorm's scale and shift", "weights"),
    ("running mean of squared gradients", "optimizer_state"),
    ("the momentum of SGD", "optimizer_state"),
    ("the scales of an 8-bit optimizer's blocks", "optimizer_state"),
    ("the fp32 copy that the optimizer updates while bf16 weights are trained", "master_weights"),
    ("bf16 weights that autocast made of fp32 ones", "cast_cache"),
    ("what .grad of a weight points to", "gradients"),
    ("the input of a linear layer, kept until its weight's gradient is computed", "activations"),
    ("a block's input kept by activation checkpointing", "activations"),
    ("eager attention's softmax, batch × heads × length × length", "activations"),
    ("a dropout mask", "activations"),
    ("the scores over the vocabulary before the softmax", "logits"),
    ("fp32 log-probabilities of the loss", "logits"),
    ("a block's weights that FSDP gathers before its forward", "communication"),
    ("DDP's gradient buckets", "communication"),
    ("the square roots that foreach AdamW takes of all second moments at once", "temporaries"),
    ("the gradient that flows from one block to the block before it", "temporaries"),
    ("32 MiB that cuBLAS keeps for each handle and stream", "workspace"),
)


def _label(bucket: Bucket) -> str:
    return bucket.replace("_", " ")


@template("buckets.name", _TOPIC, 1)
def name(draw: Draw) -> Question:
    """Put a tensor into its bucket."""
    case = draw.case(SMALL, micro_batch=8)
    thing, bucket = draw.choice(_THINGS)
    near: dict[Bucket, tuple[Bucket, ...]] = {
        "weights": ("master_weights", "cast_cache", "activations"),
        "master_weights": ("weights", "optimizer_state", "cast_cache"),
        "gradients": ("optimizer_state", "activations", "temporaries"),
        "optimizer_state": ("gradients", "master_weights", "temporaries"),
        "cast_cache": ("weights", "master_weights", "temporaries"),
        "activations": ("temporaries", "gradients", "logits"),
        "logits": ("activations", "temporaries", "weights"),
        "communication": ("gradients", "workspace", "temporaries"),
        "temporaries": ("optimizer_state", "activations", "workspace"),
        "workspace": ("temporaries", "communication", "cast_cache"),
    }
    return draw.options(
        case.job,
        prompt=f"In which bucket does this belong: {thing}?",
        right=Option(_label(bucket), f"{_label(bucket).capitalize()}: {BUCKET_MEANINGS[bucket]}."),
        wrong=[
            Option(_label(other), f"Not this one. {_label(other).capitalize()}: {BUCKET_MEANINGS[other]}.")
            for other in near[bucket]
        ],
        steps=[Step(_label(bucket), BUCKET_MEANINGS[bucket])],
        mistake="Ask who makes it, and when it is freed.",
        by_text=True,
    )


@template("buckets.grows-with", _TOPIC, 1)
def grows_with(draw: Draw) -> Question:
    """Which buckets follow the micro batch."""
    case = draw.case(SMALL, micro_batch=[2, 4, 8])
    what, changes = draw.choice(
        [
            ("micro batch", {"micro_batch": 2 * case.job.micro_batch}),
            ("sequence length", {"sequence_length": 2048}),
        ]
    )
    before, after = case.board(), case.board(**changes)
    steps = [
        Step(_label(b), f"{format_gib(before.buckets[b])}, then {format_gib(after.buckets[b])}")
        for b in before.buckets
        if before.buckets[b]
    ]
    return draw.options(
        case.job,
        setting=[case.size_line, case.batch_line, case.recipe_line, "fused attention"],
        prompt=f"The {what} doubles. What grows?",
        right=Option(
            "activations and logits", "They are made of tokens; everything else is made of parameters."
        ),
        wrong=[
            Option("everything", "Weights, gradients and optimizer state are as many numbers as parameters."),
            Option(
                "activations and gradients", "A gradient has the shape of its parameter, whatever the batch."
            ),
            Option(
                "activations, logits and optimizer state", "Adam keeps two numbers a parameter, not a token."
            ),
        ],
        steps=steps,
        mistake="Two families: made of parameters, or made of tokens.",
    )


@template("buckets.largest", _TOPIC, 2)
def largest(draw: Draw) -> Question:
    """Which bucket of a job is the largest."""
    case = draw.case(
        [*PLAIN, *GATED[:2]],
        micro_batch=[1, 4, 16],
        sequence_length=[512, 1024],
        precision=["amp_bf16", "bf16"],
        checkpointing=["none", "full"],
    )
    buckets = case.board().buckets
    wanted: tuple[Bucket, ...] = ("weights", "optimizer_state", "activations", "logits")
    ranked = sorted(wanted, key=lambda b: buckets[b], reverse=True)
    right = ranked[0]
    return draw.options(
        case.job,
        setting=[case.model_line, case.batch_line, case.recipe_line, case.levers_line],
        prompt="On the whiteboard, which of these is the largest?",
        right=Option(_label(right), f"{_label(right).capitalize()}: {format_gib(buckets[right])}."),
        wrong=[
            Option(_label(b), f"{_label(b).capitalize()}: only {format_gib(buckets[b])}.") for b in ranked[1:]
        ],
        steps=case.terms(*wanted),
        mistake="Work out tokens × layers × width and tokens × vocabulary before you look at parameters.",
        by_text=True,
    )


@template("buckets.empty-when", _TOPIC, 2)
def empty_when(draw: Draw) -> Question:
    """What does not exist at a moment."""
    case = draw.case(SMALL, micro_batch=8)
    moments: tuple[tuple[str, Bucket, str, tuple[Bucket, ...]], ...] = (
        (
            "just before the first forward of a fresh run",
            "optimizer_state",
            "torch's optimizers make their state at the first step().",
            ("weights",),
        ),
        (
            "between two steps, after zero_grad(set_to_none=True)",
            "gradients",
            "They are freed, and come back tensor by tensor in the next backward.",
            ("weights", "optimizer_state"),
        ),
        (
            "inside optimizer.step()",
            "activations",
            "The backward pass has used and freed them all.",
            ("weights", "gradients", "optimizer_state"),
        ),
        (
            "at the end of a steady step's forward, gradients set to None before it",
            "gradients",
            "No gradient exists until backward begins.",
            ("weights", "optimizer_state", "activations"),
        ),
    )
    moment, gone, why, there = draw.choice(moments)
    pool: list[Bucket] = [b for b in ("weights", "gradients", "optimizer_state", "activations") if b != gone]
    wrong = [b for b in pool if b in there]
    extra = [Option("nothing is missing", f"One is: {_label(gone)}. {why}")]
    return draw.options(
        case.job,
        setting=["AdamW, AMP, no accumulation"],
        prompt=f"Which of these does not exist {moment}?",
        right=Option(_label(gone), why),
        wrong=[Option(_label(b), f"{_label(b).capitalize()} exist at that moment.") for b in wrong] + extra,
        steps=[Step("there", ", ".join(_label(b) for b in there)), Step("not there", _label(gone))],
        mistake="Walk through the step: forward saves, backward swaps activations for gradients, step() "
        "uses them.",
        by_text=True,
    )


@template("buckets.share", _TOPIC, 2)
def share(draw: Draw) -> Question:
    """The share of what the batch decides."""
    case = draw.case(PLAIN, micro_batch=[4, 8, 16], sequence_length=1024, precision="amp_bf16")
    board = case.board()
    tokens = board.buckets["activations"] + board.buckets["logits"]
    value = 100 * tokens / board.peak_bytes
    return draw.number(
        case.job,
        setting=[case.model_line, case.batch_line, case.recipe_line, case.levers_line],
        prompt="What percentage of the whiteboard's total do activations and logits take together?",
        value=value,
        unit="%",
        tolerance=0.08,
        slips=[
            Slip(100 - value, "gave the rest", "That is the share of weights, gradients, moments and casts."),
            Slip(
                100 * board.buckets["activations"] / board.peak_bytes,
                "forgot the logits",
                "That leaves out the scores over the vocabulary and their fp32 copies.",
            ),
        ],
        steps=[
            *case.terms(),
            Step("share", f"{format_gib(tokens)} / {format_gib(board.peak_bytes)} = {value:.0f}%"),
        ],
        mistake="What the batch decides is usually the larger half of a small model's memory.",
    )


@template("buckets.outside", _TOPIC, 1)
def outside(draw: Draw) -> Question:
    """What torch's counters do not see."""
    case = draw.case(SMALL, micro_batch=8)
    return draw.options(
        case.job,
        prompt="Which of these does torch.cuda.memory_allocated() not count?",
        right=Option(
            "the CUDA context: kernels, driver state",
            "It is the driver's, some hundreds of MiB before the first tensor, and no part of torch's "
            "allocator.",
        ),
        wrong=[
            Option("cuBLAS workspaces", "They come from torch's allocator like a tensor, and stay in use."),
            Option("gradients of frozen layers' inputs", "They are tensors, for as long as they live."),
            Option("the optimizer's state", "It is made of tensors on the device."),
        ],
        steps=[Step("nvidia-smi", "reserved by torch + CUDA context + other libraries' own allocations")],
        mistake="The counters know what went through the caching allocator, nothing else.",
    )


TEMPLATES: tuple[Template, ...] = (name, grows_with, largest, empty_when, share, outside)
