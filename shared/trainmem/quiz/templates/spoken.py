"""Spoken questions: think aloud, reveal a model answer, tick what was said."""

from __future__ import annotations

from typing import Final

from trainmem.device import device
from trainmem.job import Lora, Sharding
from trainmem.quiz.cases import GATED, LARGE, PLAIN
from trainmem.quiz.draw import Draw, Template, template
from trainmem.quiz.question import Question, Rubric
from trainmem.units import GB, format_gib
from trainmem.whiteboard import lesson_limits
from trainmem.whiteboard.sharding import zero_bytes_per_parameter

__all__ = ["TEMPLATES"]

_TOPIC: Final = "spoken"


@template("spoken.walk-through", _TOPIC, 2)
def walk_through(draw: Draw) -> Question:
    """Estimate a whole job aloud."""
    case = draw.case(PLAIN, micro_batch=[4, 8], sequence_length=1024, precision="amp_bf16")
    board = case.board()
    state = case.bytes("weights", "gradients", "optimizer_state", "cast_cache")
    blocks, logits = board.buckets["activations"], board.buckets["logits"]
    return draw.spoken(
        case.job,
        setting=[case.model_line, case.batch_line, case.recipe_line, case.levers_line],
        prompt="Estimate this job's peak memory, aloud, from nothing.",
        rubric=Rubric(
            model_answer=(
                "Fixed cost first: 4 for weights, 4 for gradients, 8 for Adam, 2 for autocast's copies, "
                "18 bytes a "
                f"parameter, about {format_gib(state)}. Then tokens: 34 s b h a block, "
                f"{case.architecture.layers} "
                f"blocks, about {format_gib(blocks)}. Logits at 10 bytes each, about "
                f"{format_gib(logits)}. Together "
                f"about {format_gib(board.peak_bytes)}. The peak is at the start of backward. Real code "
                "needs more: "
                "the residual stream is fp32 under autocast, and GPT-2's gelu is a chain that saves "
                "several tensors, "
                f"so I would expect {format_gib(board.gap.peak_bytes)}."
            ),
            must=(
                "bytes per parameter, part by part, and their product",
                "activations as layers × c × s b h",
                "the logits, with their fp32 copies",
                "a sum with a unit, and GB kept apart from GiB",
            ),
            senior=(
                "which instant is the peak",
                "that the first step lacks Adam's state",
                "why real code needs more than 34 s b h",
            ),
            avoid="Stopping at the parameters: what the batch decides is the larger half here.",
        ),
        steps=case.terms(),
    )


@template("spoken.second-step", _TOPIC, 2)
def second_step(draw: Draw) -> Question:
    """Explain an out-of-memory error in step 2."""
    case = draw.case(PLAIN[1:], micro_batch=8, sequence_length=1024, precision="amp_bf16")
    state = case.bytes("optimizer_state")
    return draw.spoken(
        case.job,
        setting=[case.size_line, case.batch_line, case.recipe_line],
        prompt="“The first step was fine, the second ran out of memory.” Explain, and say what you would do.",
        rubric=Rubric(
            model_answer=(
                f"AdamW makes its two moments in the first optimizer.step(), here {format_gib(state)}. "
                "In step 1 they "
                "were not there during forward and backward; from step 2 on they are. So the job was "
                "short by up to "
                "that much all along. I would look at the peak of the second step, then take the "
                "cheapest lever for "
                "the largest bucket: a smaller micro batch with accumulation, or checkpointing; 8-bit "
                "AdamW if the "
                "state is what is large. And I would check that nothing else grows: outputs kept in a "
                "list, a loss "
                "summed without detach."
            ),
            must=(
                "optimizer state is made at the end of step 1",
                "its size: two moments, 8 bytes a parameter here",
                "one lever that fits the largest bucket",
            ),
            senior=(
                "tells it from a leak: does step 3 need more than step 2?",
                "measures two steps before trusting any job",
            ),
            avoid="Blaming fragmentation or gradients that pile up without looking at a number.",
        ),
        steps=case.terms("optimizer_state"),
    )


@template("spoken.checkpointing", _TOPIC, 2)
def checkpointing(draw: Draw) -> Question:
    """The trade of activation checkpointing."""
    case = draw.case([*PLAIN[1:], *GATED[:2]], micro_batch=4, sequence_length=1024, precision="bf16")
    before, after = case.bytes("activations"), case.bytes("activations", checkpointing="full")
    return draw.spoken(
        case.job.with_(checkpointing="full"),
        setting=[case.model_line, case.batch_line],
        prompt="When would you switch on activation checkpointing, what does it save here, and what does "
        "it cost?",
        rubric=Rubric(
            model_answer=(
                "It keeps each block's input, 2 s b h, and recomputes the block in backward. Here "
                "activations fall from "
                f"{format_gib(before)} to {format_gib(after)}. It costs one more forward, a third more "
                "arithmetic, "
                "often a quarter in time. I use it when activations are the largest bucket and a smaller "
                "micro batch "
                "already hurts the speed. It does nothing for logits, weights, gradients or moments, and then "
                "the peak moves: to the "
                "logits, or to the optimizer step."
            ),
            must=(
                "keeps block inputs, recomputes the rest",
                "about a third more compute",
                "which buckets it does not touch",
                "a number for this job",
            ),
            senior=(
                "where the peak goes next",
                "selective recomputation of attention only, and why fused attention made that moot",
            ),
            avoid="Saying that it doubles the time, or that it is free.",
        ),
        steps=case.terms("activations", checkpointing="full"),
    )


@template("spoken.zero", _TOPIC, 3)
def zero(draw: Draw) -> Question:
    """Explain the ZeRO stages with numbers."""
    ranks = draw.choice([8, 16, 64])
    case = draw.case(
        LARGE[:3],
        precision="bf16_master",
        checkpointing="full",
        sharding=Sharding(mode="zero3", data_parallel=ranks),
    )
    sizes = [
        case.parameters * zero_bytes_per_parameter(mode, ranks) / GB for mode in ("zero1", "zero2", "zero3")
    ]
    return draw.spoken(
        case.job,
        setting=[case.size_line, f"{ranks} GPUs, classic mixed precision, AdamW"],
        prompt="Explain the three stages of ZeRO, with this model's numbers, and what each costs in "
        "communication.",
        rubric=Rubric(
            model_answer=(
                "16 bytes a parameter: 2 weights, 2 gradients, 12 optimizer. Alone "
                f"{case.parameters * 16 / GB:.0f} GB. "
                f"Stage 1 divides the 12: {sizes[0]:.1f} GB a GPU. Stage 2 also the gradients: "
                f"{sizes[1]:.1f} GB. Stage 3 "
                f"also the weights: {sizes[2]:.1f} GB. Stages 1 and 2 communicate as much as plain data "
                "parallelism, "
                "a reduce-scatter and an all-gather; stage 3 gathers weights again in backward, half as "
                "much more. "
                "Activations are not divided by any of them, and stage 3 needs room for the gathered block."
            ),
            must=(
                "what each stage divides",
                "the three sums",
                "activations are not divided",
                "stage 3 gathers weights as it goes",
            ),
            senior=(
                "communication: the same for 1 and 2, 1.5 times for 3",
                "the gathered block is a floor that more GPUs do not lower",
                "FSDP2 is stage 3; reshard_after_forward trades memory for a gather",
            ),
            avoid="Dividing everything by N, activations included.",
        ),
        steps=case.terms("weights", "master_weights", "gradients", "optimizer_state", "communication"),
    )


@template("spoken.lora-or-full", _TOPIC, 3)
def lora_or_full(draw: Draw) -> Question:
    """What fits on a Spark, by method."""
    case = draw.case(
        LARGE[:2],
        sequence_length=2048,
        precision="bf16",
        lora=Lora(rank=16),
        checkpointing="full",
        device="spark",
    )
    usable = device("spark").usable_bytes
    full, lora, qlora = lesson_limits(usable)
    return draw.spoken(
        case.job,
        setting=[f"a DGX Spark: {format_gib(usable)} usable, one memory for CPU and GPU"],
        prompt="How large a model can you fine-tune on it: fully, with LoRA, with QLoRA? Reason aloud.",
        rubric=Rubric(
            model_answer=(
                f"Fully: 16 bytes a parameter, {full.substituted}; with room for activations {full.answer}. "
                f"LoRA: 2 bytes for a frozen 16-bit base, {lora.substituted} at the very most, {lora.answer} "
                f"with activations. QLoRA: about half a byte, so {qlora.answer} is comfortable. The "
                "recipe matters: "
                "AMP costs 18 bytes and foreach AdamW adds a temporary, so a 7B does not fit that way, "
                "but does in "
                "pure bf16 or with 8-bit moments. Offload to the CPU does not help: it is the same memory."
            ),
            must=(
                "16 (or 18), 2 and about 0.5 bytes a parameter",
                "three sizes, with room left for activations",
                "the system's share comes off first",
            ),
            senior=(
                "CPU offload frees nothing on this machine",
                "pure bf16 or 8-bit moments make a 7B fit",
                "bandwidth: a step must read and write weights, gradients and moments at 273 GB/s",
            ),
            avoid="Dividing 128 by 2 and calling it a day.",
        ),
        steps=case.terms(),
    )


@template("spoken.fragmentation", _TOPIC, 2)
def fragmentation(draw: Draw) -> Question:
    """Allocated, reserved, and the driver's number."""
    case = draw.case(PLAIN, micro_batch=8, sequence_length=1024, precision="amp_bf16")
    return draw.spoken(
        case.job,
        setting=["allocated 39 GiB, reserved 47 GiB, nvidia-smi 48 GiB, an 80 GB card"],
        prompt="A colleague asks which of the three numbers is “the memory”. What do you say?",
        rubric=Rubric(
            model_answer=(
                "Allocated is what live tensors need, in blocks. Reserved is what torch's caching "
                "allocator took from the "
                "driver: freed blocks stay cached for the next step. nvidia-smi adds the CUDA context "
                "and other "
                "libraries. Peaks of allocated say what the job needs; reserved is what decides whether "
                "it dies. The 8 GiB "
                "between them are cached or fragmented: expandable_segments usually shrinks it, "
                "empty_cache only hides it. "
                "And the current value is not the peak: read max_memory_allocated."
            ),
            must=(
                "allocated: live tensors",
                "reserved: taken from the driver, cached segments included",
                "nvidia-smi: reserved plus context",
                "peak against current",
            ),
            senior=(
                "fragmentation and expandable_segments",
                "why empty_cache in a loop costs time and helps little",
            ),
            avoid="Taking nvidia-smi's number for the size of the tensors.",
        ),
        steps=case.terms(),
    )


@template("spoken.halve-it", _TOPIC, 3)
def halve_it(draw: Draw) -> Question:
    """Bring a job to half its memory."""
    case = draw.case([*PLAIN[2:], GATED[0]], micro_batch=8, sequence_length=1024, precision="amp_bf16")
    smaller = case.bytes(micro_batch=2, accumulation=4)
    checkpointed = case.bytes(checkpointing="full")
    both = case.bytes(checkpointing="full", optimizer="adamw8bit")
    return draw.spoken(
        case.job.with_(checkpointing="full"),
        setting=[
            case.model_line,
            case.batch_line,
            case.recipe_line,
            case.levers_line,
            f"whiteboard: {format_gib(case.bytes())}",
        ],
        prompt="Bring it down to half, and say in which order you would try things and why.",
        rubric=Rubric(
            model_answer=(
                "First see what is large: "
                + ", ".join(
                    f"{b.replace('_', ' ')} {format_gib(v)}" for b, v in case.board().buckets.items() if v
                )
                + f". Micro batch 2 with four accumulated leaves {format_gib(smaller)}, same gradient. "
                "Checkpointing "
                f"instead leaves {format_gib(checkpointed)} for a third more compute. With 8-bit AdamW "
                "on top "
                f"{format_gib(both)}. A chunked loss takes most of the logits away. Pure bf16 or LoRA "
                "only after that: "
                "they change what is learnt."
            ),
            must=(
                "looks at the buckets before choosing",
                "levers with identical mathematics first",
                "a number after each lever",
            ),
            senior=(
                "the price of each in step time",
                "asks again where the peak is after each lever",
                "global batch stays the same under accumulation",
            ),
            avoid="Reaching for LoRA or quantisation before the free levers.",
        ),
        steps=case.terms(checkpointing="full", optimizer="adamw8bit"),
    )


TEMPLATES: tuple[Template, ...] = (
    walk_through,
    second_step,
    checkpointing,
    zero,
    lora_or_full,
    fragmentation,
    halve_it,
)
