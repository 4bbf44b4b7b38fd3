"""Find the mistake: an argument in numbered lines, one of which is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trainmem.job import Lora, Sharding, TrainingJob
from trainmem.quiz.cases import GATED, LARGE, PLAIN, SMALL, count_in_words
from trainmem.quiz.draw import Draw, Template, template
from trainmem.quiz.question import Option, Question, Step
from trainmem.units import GB, GIB, format_gib
from trainmem.whiteboard.sharding import zero_bytes_per_parameter

__all__ = ["TEMPLATES"]

_TOPIC: Final = "mistakes"
_TRUE_OPENINGS = (
    ("Some memory is made of parameters, some of tokens.", "That is the first cut to make."),
    (
        "What counts is the peak over a step, not its average.",
        "One instant over the limit is enough to run out.",
    ),
    ("torch counts in bytes, and one GiB is 2^30 of them.", "A GB, 10^9 of them, is 7% less."),
)


def _find(
    draw: Draw,
    job: TrainingJob,
    lines: Sequence[tuple[str, str]],
    wrong: int,
    *,
    steps: Sequence[Step],
    mistake: str,
    about: str = "",
) -> Question:
    """An argument in ``lines``, each with what to say to someone who blames it; ``wrong`` is the culprit.

    Up to two true lines come first, so that the culprit's place gives nothing away.
    """
    argument = [*draw.random.sample(_TRUE_OPENINGS, draw.random.randrange(3)), *lines]
    place = argument.index(lines[wrong])
    return draw.options(
        job,
        setting=[about] if about else [],
        prompt="Which line of this argument is wrong?",
        right=Option(*lines[wrong]),
        wrong=[
            Option(text, f"This line is true. {why}") for i, (text, why) in enumerate(argument) if i != place
        ],
        steps=steps,
        mistake=mistake,
        place=place,
    )


@template("mistakes.mixed-precision", _TOPIC, 2)
def mixed_precision(draw: Draw) -> Question:
    """Mixed precision halves memory."""
    case = draw.case(SMALL, micro_batch=4, precision="amp_bf16")
    count = case.parameters
    fp32 = count * 16
    return _find(
        draw,
        case.job,
        [
            (
                f"In fp32 with AdamW weights, gradients and moments take 16 bytes a parameter: {format_gib(fp32)}.",
                "4 + 4 + 8.",
            ),
            (
                "Autocast runs matrix products in bf16, so their saved inputs are 2 bytes an element.",
                "That is what autocast does.",
            ),
            (
                f"So weights, gradients and moments take half as well: {format_gib(fp32 // 2)}.",
                "Autocast leaves all three in fp32 and adds 16-bit copies of the weights: 18 bytes, not 8.",
            ),
            (
                "What shrinks is made of tokens, not of parameters.",
                "Activations shrink, weights and moments do not.",
            ),
        ],
        2,
        steps=[
            Step("under AMP", f"{count:,} × (4 + 4 + 8 + 2) B = {format_gib(count * 18)}"),
            *case.terms("weights", "gradients", "optimizer_state", "cast_cache"),
        ],
        mistake="Mixed precision halves activations and speeds up products; a parameter goes from 16 to 18 bytes.",
        about=f"{case.model.sized}, AMP",
    )


@template("mistakes.global-batch", _TOPIC, 1)
def global_batch(draw: Draw) -> Question:
    """Memory grows with the global batch."""
    k = draw.choice([4, 8, 16])
    case = draw.case(PLAIN, micro_batch=4, sequence_length=1024, precision="amp_bf16", accumulation=[k])
    one = case.bytes("activations")
    return _find(
        draw,
        case.job,
        [
            (f"One micro batch of 4 saves {format_gib(one)} in its blocks.", "L × 34 s b h gives that."),
            (f"A step accumulates {k} micro batches, {4 * k} sequences in all.", "That is the global batch."),
            (
                f"So blocks save {format_gib(one * k)} by the end of the step.",
                "Each backward frees its micro batch's activations before the next forward saves new ones.",
            ),
            (
                "Gradients are one tensor a parameter, whatever the accumulation.",
                "All micro batches add into it.",
            ),
        ],
        2,
        steps=case.terms("activations", "gradients"),
        mistake="The micro batch decides memory; the global batch decides learning.",
        about=case.size_line,
    )


@template("mistakes.nvidia-smi", _TOPIC, 1)
def nvidia_smi(draw: Draw) -> Question:
    """nvidia-smi shows my tensors."""
    case = draw.case(SMALL, micro_batch=8, device="h200")
    shown = draw.random.randrange(300, 700) / 10
    return _find(
        draw,
        case.job,
        [
            (f"nvidia-smi shows {shown:.1f} GiB for the training process.", "Take that as read."),
            (
                f"So its tensors take {shown:.1f} GiB.",
                "The driver sees reserved segments, cached ones included, and the context.",
            ),
            ("memory_allocated() counts the blocks of live tensors.", "Nothing else is in it."),
            (
                "empty_cache() can lower the first number, never the third line's.",
                "It returns unused segments only.",
            ),
        ],
        1,
        steps=[Step("nvidia-smi", "reserved + CUDA context + other libraries")],
        mistake="Ask torch for tensors; ask the driver for processes.",
    )


@template("mistakes.checkpointing-time", _TOPIC, 2)
def checkpointing_time(draw: Draw) -> Question:
    """Checkpointing doubles the time."""
    case = draw.case(
        [*PLAIN, *GATED[:2]], micro_batch=4, sequence_length=1024, precision="bf16", checkpointing="full"
    )
    before, after = case.bytes("activations", checkpointing="none"), case.bytes("activations")
    return _find(
        draw,
        case.job,
        [
            (
                "Backward costs about twice the arithmetic of forward.",
                "Two products for one: for inputs and for weights.",
            ),
            ("Checkpointing every block runs each block's forward once more.", "That is the price."),
            (
                "So a step takes about twice as long.",
                "Forward 1 + again 1 + backward 2, against 3: a third more.",
            ),
            (
                f"Activations fall from {format_gib(before)} to {format_gib(after)}.",
                "L inputs of 2 s b h and one block.",
            ),
        ],
        2,
        steps=[Step("arithmetic", "(1 + 1 + 2) / (1 + 2) = 1.33"), *case.terms("activations")],
        mistake="A third more in theory; measured 25% for GPT-2 774M on an H200.",
        about=f"{case.model.title}, {case.batch_line}",
    )


@template("mistakes.inference", _TOPIC, 2)
def inference(draw: Draw) -> Question:
    """Inference is training minus gradients."""
    case = draw.case(LARGE[:2], micro_batch=1, sequence_length=2048, precision="bf16")
    count = case.parameters
    return _find(
        draw,
        case.job,
        [
            (f"In bf16 the weights take {format_gib(count * 2)}.", "Two bytes each."),
            (
                f"Pure bf16 training with AdamW needs {format_gib(count * 8)} before any activation.",
                "2 + 2 + 4 bytes a parameter.",
            ),
            (
                "Inference needs the same without gradients: "
                f"{format_gib(count * 6)}, and activations of every layer.",
                "It has no optimizer state, and a layer's activations go as soon as the next layer has run.",
            ),
            (
                "What grows with the context in inference is the key and value cache.",
                "Training has none.",
            ),
        ],
        2,
        steps=[
            Step("inference", f"weights {format_gib(count * 2)} + key and value cache + one layer at a time"),
            Step("training", f"{format_gib(count * 8)} + activations of all layers + logits"),
        ],
        mistake="Training also keeps moments, and every layer's activations until backward comes by.",
        about=f"{case.model.title}, {count_in_words(count)} parameters",
    )


@template("mistakes.lora-activations", _TOPIC, 2)
def lora_activations(draw: Draw) -> Question:
    """LoRA removes activations."""
    lora = Lora(rank=16)
    case = draw.case(GATED[2:5], micro_batch=2, sequence_length=2048, precision="bf16", lora=lora)
    return _find(
        draw,
        case.job,
        [
            (f"The frozen base takes {format_gib(case.parameters * 2)} in bf16.", "Two bytes a parameter."),
            ("Frozen weights have neither gradients nor moments.", "Nothing computes or updates them."),
            (
                "As almost nothing trains, almost no activations are kept.",
                "Gradients must flow through every block to reach the adapters below, so blocks keep theirs.",
            ),
            (
                "Checkpointing helps LoRA as much as it helps full fine-tuning.",
                "Activations are the same.",
            ),
        ],
        2,
        steps=case.terms("weights", "activations", "logits"),
        mistake="Who only freezes weights still pays for the batch.",
        about=f"{case.model.title}, LoRA of rank 16, {case.batch_line}",
    )


@template("mistakes.zero-activations", _TOPIC, 2)
def zero_activations(draw: Draw) -> Question:
    """ZeRO divides everything."""
    ranks = draw.choice([8, 16])
    case = draw.case(
        LARGE[:2],
        micro_batch=2,
        sequence_length=2048,
        precision="bf16_master",
        sharding=Sharding(mode="zero3", data_parallel=ranks),
    )
    each = case.parameters * zero_bytes_per_parameter("zero3", ranks)
    tokens = case.bytes("activations")
    return _find(
        draw,
        case.job,
        [
            (
                f"ZeRO-3 over {ranks} GPUs leaves {each / GB:.1f} GB of what parameters take on each.",
                f"16 / {ranks} bytes a parameter.",
            ),
            ("Each rank gathers a block's weights just before it needs them.", "That is how stage 3 works."),
            (
                f"Activations are divided too: {format_gib(tokens)} becomes {format_gib(tokens // ranks)}.",
                "Each rank has its own micro batch and keeps all of its activations.",
            ),
            ("Checkpointing lowers activations on every rank.", "It does, as on one GPU."),
        ],
        2,
        steps=case.terms("weights", "gradients", "optimizer_state", "activations"),
        mistake="ZeRO shards what is made of parameters.",
        about=f"{case.model.sized}; {case.batch_line} on each GPU; 2 + 2 + 12 bytes a parameter",
    )


@template("mistakes.first-step", _TOPIC, 1)
def first_step(draw: Draw) -> Question:
    """One step proves that a job fits."""
    case = draw.case(PLAIN, micro_batch=8, precision="amp_bf16")
    state = case.bytes("optimizer_state")
    return _find(
        draw,
        case.job,
        [
            ("Shapes are the same in every step.", "Take that as given."),
            (
                "AdamW makes its moments in the first optimizer step.",
                "It does: they are made when first needed.",
            ),
            (
                "The first step passed, so all later steps will.",
                f"From step 2 on {format_gib(state)} of moments lie under forward and backward.",
            ),
            ("Two steps are enough to see the steady peak.", "With equal shapes, yes."),
        ],
        2,
        steps=case.terms("optimizer_state"),
        mistake="The second step is the first honest one.",
        about=f"{case.model.sized}, AdamW",
    )


@template("mistakes.units", _TOPIC, 1)
def units(draw: Draw) -> Question:
    """GB for GiB."""
    case = draw.case(LARGE[:2], precision="bf16", checkpointing="full", device="spark")
    value = case.parameters * 8
    return _find(
        draw,
        case.job,
        [
            (f"Pure bf16 with AdamW takes 8 bytes a parameter: {value / GB:.1f} × 10^9 bytes.", "2 + 2 + 4."),
            (f"That is {value / GB:.1f} GiB.", f"10^9 bytes are a GB; in GiB it is {value / GIB:.1f}."),
            ("torch's counters and messages are in GiB and MiB.", "Its messages say so."),
            ("Boxes and data sheets are in GB.", "10^9 bytes each."),
        ],
        1,
        steps=[Step("in GiB", f"{value:,} / 2^30 = {value / GIB:.1f}")],
        mistake="7.4% apart: enough to decide whether a job fits.",
        about=case.model.sized,
    )


@template("mistakes.fused-attention", _TOPIC, 2)
def fused_attention(draw: Draw) -> Question:
    """Fused attention makes all memory linear and small."""
    case = draw.case(PLAIN, micro_batch=2, sequence_length=1024, precision="amp_bf16")
    blocks = case.bytes("activations")
    eager = case.bytes("activations", attention="eager")
    return _find(
        draw,
        case.job,
        [
            (f"With eager attention blocks save {format_gib(eager)}.", "34 s b h + 5 a s² b a block."),
            ("Fused attention never writes the s × s scores.", "It recomputes them tile by tile."),
            ("It keeps queries, keys, values and its output.", "It does, for the backward pass."),
            (
                "So almost no activations are left.",
                f"{format_gib(blocks)} are: inputs of norms and linear layers, and the MLP.",
            ),
        ],
        3,
        steps=case.terms("activations", attention="eager"),
        mistake="It removes the quadratic term; 34 s b h stays.",
        about=f"{case.model.title}, {case.batch_line}",
    )


@template("mistakes.offload-spark", _TOPIC, 2)
def offload_spark(draw: Draw) -> Question:
    """Offload frees memory on a Spark."""
    case = draw.case(LARGE[:2], precision="bf16_master", checkpointing="full", device="spark")
    job = case.job.with_(sharding=Sharding(mode="zero2", offload="cpu"))
    state = case.parameters * 12
    return _find(
        draw,
        job,
        [
            (f"Moments and master weights take {format_gib(state)}.", "12 bytes a parameter."),
            (
                "Offloaded to the CPU they no longer count in torch.cuda.memory_allocated().",
                "They are no tensors on the device any more.",
            ),
            ("On a DGX Spark CPU and GPU share one memory.", "One pool of LPDDR5X."),
            (
                f"So offloading frees {format_gib(state)} there.",
                "The bytes stay in the same memory; nothing is freed.",
            ),
        ],
        3,
        steps=[Step("freed on a Spark", "0 B"), Step("freed on a discrete GPU", format_gib(state))],
        mistake="A counter that falls is not memory that comes free.",
        about=case.model.sized,
    )


TEMPLATES: tuple[Template, ...] = (
    mixed_precision,
    global_batch,
    nvidia_smi,
    checkpointing_time,
    inference,
    lora_activations,
    zero_activations,
    first_step,
    units,
    fused_attention,
    offload_spark,
)
