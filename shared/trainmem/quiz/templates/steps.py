"""Step 1 against step 2: what appears when, and what is left between steps."""

from __future__ import annotations

from typing import Final

from trainmem.job import Optimizer
from trainmem.quiz.cases import PLAIN, SMALL
from trainmem.quiz.draw import Draw, Template, template
from trainmem.quiz.question import Option, Question, Slip, Step
from trainmem.units import format_gib

__all__ = ["TEMPLATES"]

_TOPIC: Final = "step by step"
_WITH_STATE: tuple[Optimizer, ...] = ("adamw", "adamw8bit", "sgd_momentum", "lion8bit")


@template("steps.rise", _TOPIC, 1)
def rise(draw: Draw) -> Question:
    """How much higher the second step starts."""
    case = draw.case(SMALL, micro_batch=8, precision="amp_bf16")
    value = case.bytes("optimizer_state")
    return draw.number(
        case.job,
        setting=[case.size_line, case.batch_line, case.recipe_line, "zero_grad(set_to_none=True)"],
        prompt="By how much is allocated memory higher at the start of step 2 than at the start of step 1?",
        value=value,
        unit="GiB",
        slips=[
            Slip(value / 2, "forgot the second Adam moment", "Both moments are made at the first step()."),
            Slip(value * 1.5, "counted gradients", "They are set to None between steps."),
            Slip(
                value * 2, "counted weights and gradients", "Weights were there before, gradients are gone."
            ),
        ],
        steps=case.terms("optimizer_state"),
        mistake="Adam's state does not exist until the first optimizer step.",
    )


@template("steps.rise-by-optimizer", _TOPIC, 2)
def rise_by_optimizer(draw: Draw) -> Question:
    """The same for another optimizer."""
    case = draw.case(SMALL, micro_batch=4, precision="amp_bf16", optimizer=list(_WITH_STATE[1:]))
    value = case.bytes("optimizer_state")
    count = case.parameters
    return draw.number(
        case.job,
        setting=[case.size_line, case.recipe_line, "zero_grad(set_to_none=True)"],
        prompt="By how much does allocated memory rise from the start of step 1 to the start of step 2?",
        value=value,
        unit="GiB" if value > 2**29 else "MiB",
        slips=[
            Slip(count * 8, "took it for AdamW", "AdamW's 8 bytes are two fp32 moments."),
            Slip(count * 4, "took it for fp32 momentum", "This optimizer's state is 8-bit."),
            Slip(value + count * 4, "counted gradients", "They are None between steps."),
        ],
        steps=case.terms("optimizer_state"),
        mistake="The rise is exactly the optimizer's state: 8, 4, about 2, about 1 or 0 bytes a parameter.",
    )


@template("steps.second-dies", _TOPIC, 1)
def second_dies(draw: Draw) -> Question:
    """Why a job passes step 1 and dies in step 2."""
    case = draw.case(SMALL, micro_batch=8, precision="amp_bf16")
    value = case.bytes("optimizer_state")
    return draw.options(
        case.job,
        setting=[case.size_line, case.recipe_line, "same batch shape in every step"],
        prompt="The first step passes; the backward pass of the second runs out of memory. What is the "
        "likely reason?",
        right=Option(
            "Adam's moments, made at the end of step 1, are now there during forward and backward",
            f"They add {format_gib(value)} to every later step.",
        ),
        wrong=[
            Option(
                "The first step's activations are still there",
                "They are freed in its backward pass, unless someone keeps the graph.",
            ),
            Option(
                "Gradients accumulate into more memory with each step",
                "They add into the same tensors, or are freed by zero_grad.",
            ),
            Option("Step 2 needs larger cuBLAS workspaces", "Those are made in the first step and kept."),
        ],
        steps=case.terms("optimizer_state"),
        mistake="A job that survives one step is not safe: look at the second.",
    )


@template("steps.plain-sgd", _TOPIC, 2)
def plain_sgd(draw: Draw) -> Question:
    """Which optimizer shows no difference."""
    case = draw.case(SMALL, micro_batch=8, precision="fp32")
    return draw.options(
        case.job.with_(optimizer="sgd"),
        setting=[case.size_line, "fp32", "gradients set to None between steps"],
        prompt="Steps 1 and 2 start with exactly the same allocated memory. Which optimizer is it?",
        right=Option("SGD without momentum", "It keeps nothing between steps."),
        wrong=[
            Option(
                "SGD with momentum",
                f"It would add {format_gib(case.bytes('optimizer_state', optimizer='sgd_momentum'))}.",
            ),
            Option(
                "8-bit AdamW",
                f"It would add {format_gib(case.bytes('optimizer_state', optimizer='adamw8bit'))}.",
            ),
            Option(
                "AdamW, fused",
                f"It would add {format_gib(case.bytes('optimizer_state', optimizer='adamw'))}.",
            ),
        ],
        steps=[Step("state of plain SGD", "P × 0 B")],
        mistake="Fused or not, AdamW keeps the same two moments.",
        by_text=True,
    )


@template("steps.set-to-none", _TOPIC, 1)
def set_to_none(draw: Draw) -> Question:
    """What zero_grad(set_to_none=False) costs."""
    case = draw.case(SMALL, micro_batch=8, precision=["amp_bf16", "fp32", "bf16"])
    value = case.bytes("gradients")
    return draw.number(
        case.job.with_(zero_grad="zeros"),
        setting=[case.size_line, case.recipe_line, "the peak is at the start of backward"],
        prompt="zero_grad(set_to_none=False) is used instead of the default. How much does the peak rise?",
        value=value,
        unit="GiB" if value > 2**29 else "MiB",
        slips=[
            Slip(value * 2, "counted two copies", "There is one gradient a parameter, kept or not."),
            Slip(value * 3, "counted the moments", "The moments are there in either case."),
            Slip(case.bytes("optimizer_state"), "took the optimizer's state", "Only the gradients stay."),
        ],
        steps=case.terms("gradients"),
        mistake="Zeros take as much memory as gradients, and now they are there while activations peak.",
    )


@template("steps.accumulation", _TOPIC, 2)
def accumulation(draw: Draw) -> Question:
    """What lives on between micro batches."""
    case = draw.case(SMALL, micro_batch=2, accumulation=[2, 4, 8], precision=["amp_bf16", "bf16"])
    value, k = case.bytes("gradients"), case.job.accumulation
    return draw.number(
        case.job,
        setting=[case.size_line, case.batch_line, case.recipe_line],
        prompt="What does the second micro batch's forward find in memory that the first one's did not? "
        "How large is it?",
        value=value,
        unit="GiB" if value > 2**29 else "MiB",
        slips=[
            Slip(
                value * k,
                "counted a gradient for each micro batch",
                "All micro batches add into one gradient.",
            ),
            Slip(
                case.bytes("activations"), "took the activations", "Those of the first micro batch are freed."
            ),
            Slip(case.bytes("optimizer_state"), "took the moments", "They were there for the first one too."),
        ],
        steps=case.terms("gradients"),
        mistake="Accumulation makes gradients live through the forward; activations are those of one "
        "micro batch.",
    )


@template("steps.floor", _TOPIC, 2)
def floor(draw: Draw) -> Question:
    """What is left between two steps."""
    case = draw.case(PLAIN, micro_batch=8, precision=["amp_bf16", "bf16", "fp32"])
    value = case.bytes("weights", "optimizer_state")
    return draw.number(
        case.job,
        setting=[case.size_line, case.batch_line, case.recipe_line, "gradients set to None"],
        prompt="What does allocated memory read between two later steps, workspaces apart?",
        value=value,
        unit="GiB",
        slips=[
            Slip(case.bytes("weights"), "forgot the moments", "From the first step() on they stay."),
            Slip(value + case.bytes("gradients"), "counted gradients", "They were set to None."),
            Slip(
                value + case.bytes("cast_cache"),
                "counted the cast copies",
                "Autocast clears its cache when it ends.",
            ),
        ],
        steps=case.terms("weights", "optimizer_state"),
        mistake="Weights and optimizer state are the floor; all else comes and goes within a step.",
    )


@template("steps.after-backward", _TOPIC, 2)
def after_backward(draw: Draw) -> Question:
    """What is there when backward ends."""
    case = draw.case(PLAIN, micro_batch=8, precision="amp_bf16")
    value = case.bytes("weights", "gradients", "optimizer_state")
    return draw.number(
        case.job,
        setting=[case.size_line, case.batch_line, case.recipe_line, "a later step"],
        prompt="What does allocated memory read right after backward, workspaces apart?",
        value=value,
        unit="GiB",
        slips=[
            Slip(
                case.bytes(), "counted activations", "The backward pass has freed them, and the logits too."
            ),
            Slip(value - case.bytes("gradients"), "forgot gradients", "Backward has just made them."),
            Slip(
                case.bytes("weights", "gradients"),
                "forgot the moments",
                "They are there from the first step() on.",
            ),
        ],
        steps=case.terms("weights", "gradients", "optimizer_state"),
        mistake="Backward trades activations for gradients: 4 + 4 + 8 bytes a parameter are left.",
    )


TEMPLATES: tuple[Template, ...] = (
    rise,
    rise_by_optimizer,
    second_dies,
    plain_sgd,
    set_to_none,
    accumulation,
    floor,
    after_backward,
)
