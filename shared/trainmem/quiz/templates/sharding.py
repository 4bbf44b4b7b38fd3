"""ZeRO, FSDP and offload: what is divided, what is not, and what changes on a Spark."""

from __future__ import annotations

from typing import Final

from trainmem.device import device
from trainmem.job import Precision, Sharding, ShardingMode
from trainmem.quiz.cases import LARGE
from trainmem.quiz.draw import Draw, Template, template
from trainmem.quiz.question import Option, Question, Slip, Step
from trainmem.units import GB, GIB, format_gib
from trainmem.whiteboard.sharding import gathered_parameters, zero_bytes_per_parameter

__all__ = ["TEMPLATES"]

_TOPIC: Final = "sharding"
_STAGES: tuple[ShardingMode, ...] = ("zero1", "zero2", "zero3")
_NAMES: dict[ShardingMode, str] = {
    "none": "no sharding",
    "ddp": "DDP",
    "zero1": "ZeRO-1",
    "zero2": "ZeRO-2",
    "zero3": "ZeRO-3",
    "fsdp2": "FSDP2",
}
_WHAT: dict[ShardingMode, str] = {
    "zero1": "optimizer state and master weights",
    "zero2": "optimizer state, master weights and gradients",
    "zero3": "optimizer state, master weights, gradients and weights",
}
_CLASSIC: Precision = "bf16_master"
_CLASSIC_LINE = "classic mixed precision with AdamW: 2 + 2 + 12 bytes a parameter"


def _sum(mode: ShardingMode, ranks: int) -> str:
    parts = {
        "zero1": f"2 + 2 + 12 / {ranks}",
        "zero2": f"2 + (2 + 12) / {ranks}",
        "zero3": f"(2 + 2 + 12) / {ranks}",
    }
    return parts.get(mode, "2 + 2 + 12")


@template("sharding.per-parameter", _TOPIC, 1)
def per_parameter(draw: Draw) -> Question:
    """Bytes a parameter on each GPU."""
    mode, ranks = draw.choice(_STAGES), draw.choice([4, 8, 16, 64])
    case = draw.case(
        LARGE, precision=_CLASSIC, checkpointing="full", sharding=Sharding(mode=mode, data_parallel=ranks)
    )
    value = zero_bytes_per_parameter(mode, ranks)
    return draw.number(
        case.job,
        setting=[_CLASSIC_LINE, f"{_NAMES[mode]} over {ranks} GPUs"],
        prompt="How many bytes of weights, gradients, master weights and moments does each GPU hold for one parameter?",
        value=value,
        unit="B per parameter",
        tolerance=0.01,
        slips=[
            Slip(16, "divided nothing", "That is one GPU alone, or DDP."),
            *(
                Slip(
                    zero_bytes_per_parameter(other, ranks),
                    f"took the sum of {_NAMES[other]}",
                    f"{_NAMES[mode]} divides {_WHAT[mode]}.",
                )
                for other in _STAGES
                if other != mode
            ),
        ],
        steps=[Step("on each GPU", f"{_sum(mode, ranks)} = {value:g} B")],
        mistake="Stage 1 divides the 12, stage 2 the gradients' 2 as well, stage 3 everything.",
    )


@template("sharding.per-gpu", _TOPIC, 2)
def per_gpu(draw: Draw) -> Question:
    """The ZeRO paper's sum."""
    mode, ranks = draw.choice(_STAGES), draw.choice([8, 16, 64])
    case = draw.case(
        LARGE, precision=_CLASSIC, checkpointing="full", sharding=Sharding(mode=mode, data_parallel=ranks)
    )
    count = case.parameters
    value = count * zero_bytes_per_parameter(mode, ranks)
    return draw.number(
        case.job,
        setting=[case.size_line, _CLASSIC_LINE, f"{_NAMES[mode]} over {ranks} GPUs"],
        prompt="How much do weights, gradients, master weights and moments take on each GPU?",
        value=value,
        unit="GB",
        slips=[
            Slip(count * 16, "divided nothing", "That is one GPU alone, or DDP."),
            *(
                Slip(
                    count * zero_bytes_per_parameter(other, ranks),
                    f"took the sum of {_NAMES[other]}",
                    f"{_NAMES[mode]} divides {_WHAT[mode]}.",
                )
                for other in _STAGES
                if other != mode
            ),
            Slip(count * 16 / ranks, "divided everything", "Only stage 3 divides the weights too."),
        ],
        steps=[
            Step("a parameter", f"{_sum(mode, ranks)} = {value / count:.4g} B"),
            Step("on each GPU", f"{count:,} × {value / count:.4g} B = {value / GB:.1f} GB"),
        ],
        mistake="The paper's own example: 7.5B on 64 GPUs, 120 / 31.4 / 16.6 / 1.9 GB.",
    )


@template("sharding.what", _TOPIC, 1)
def what(draw: Draw) -> Question:
    """What a stage divides."""
    mode = draw.choice(_STAGES)
    case = draw.case(
        LARGE, precision=_CLASSIC, checkpointing="full", sharding=Sharding(mode=mode, data_parallel=8)
    )
    return draw.options(
        case.job,
        prompt=f"What does {_NAMES[mode]} divide among the data parallel ranks?",
        right=Option(_WHAT[mode], "Each stage adds one thing to the stage before it."),
        wrong=[
            *(Option(_WHAT[other], f"That is {_NAMES[other]}.") for other in _STAGES if other != mode),
            Option(
                "optimizer state, gradients, weights and activations",
                "No stage divides activations: each rank has its own micro batch.",
            ),
        ],
        steps=[Step(_NAMES[stage], _WHAT[stage]) for stage in _STAGES],
        mistake="Remember the order by what is largest: the 12 bytes of master weights and moments first.",
    )


@template("sharding.fewest", _TOPIC, 3)
def fewest(draw: Draw) -> Question:
    """The fewest GPUs for a model's weights, gradients and optimizer state."""
    budget = draw.choice([40, 60, 100]) * GIB
    case = draw.case(LARGE[2:], precision=_CLASSIC, checkpointing="full")
    total = case.parameters * 16
    value = -(-total // budget)
    return draw.number(
        case.job.with_(sharding=Sharding(mode="zero3", data_parallel=max(2, value))),
        setting=[case.size_line, _CLASSIC_LINE, f"{format_gib(budget)} of each GPU for these", "ZeRO-3"],
        prompt="How many GPUs does it take at the least?",
        value=value,
        unit="count",
        tolerance=0,
        slips=[
            Slip(total // budget, "rounded down", "The last part needs a GPU too."),
            Slip(
                -(-case.parameters * 2 // budget),
                "counted weights only",
                "Gradients and optimizer state must fit too.",
            ),
            Slip(-(-total // (budget * GB // GIB)), "GB for GiB", "The budget is in GiB."),
        ],
        steps=[
            Step("all of it", f"{case.parameters:,} × 16 B = {format_gib(total)}"),
            Step(
                "GPUs", f"{total / GIB:,.1f} / {budget / GIB:g} = {total / budget:.2f}, rounded up = {value}"
            ),
        ],
        mistake="And leave room: activations and the gathered block are on every GPU in full.",
    )


@template("sharding.limit", _TOPIC, 2)
def limit(draw: Draw) -> Question:
    """What is left with very many GPUs."""
    mode = draw.choice(_STAGES[:2])
    case = draw.case(
        LARGE[:4], precision=_CLASSIC, checkpointing="full", sharding=Sharding(mode=mode, data_parallel=1024)
    )
    value = {"zero1": 4, "zero2": 2}[mode]
    return draw.number(
        case.job,
        setting=[_CLASSIC_LINE, f"{_NAMES[mode]} over very many GPUs"],
        prompt="Towards how many bytes a parameter do weights, gradients, master weights and moments fall on each GPU?",
        value=value,
        unit="B per parameter",
        tolerance=0.02,
        slips=[
            Slip(16, "divided nothing", "The optimizer's 12 bytes are divided by the number of GPUs."),
            Slip(
                {"zero1": 2, "zero2": 4}[mode],
                "took the other stage",
                f"{_NAMES[mode]} divides {_WHAT[mode]}.",
            ),
        ],
        steps=[Step("limit", f"{_sum(mode, 1024).replace('1024', 'N')}, N large: {value} B")],
        mistake="Only stage 3 goes to zero; that is why large models need it.",
    )


@template("sharding.ddp", _TOPIC, 1)
def ddp(draw: Draw) -> Question:
    """What DDP does to one GPU."""
    ranks = draw.choice([2, 4, 8])
    case = draw.case(
        LARGE[:2], precision="bf16", checkpointing="full", sharding=Sharding(mode="ddp", data_parallel=ranks)
    )
    buckets = case.bytes("communication")
    return draw.options(
        case.job,
        setting=[case.size_line, case.recipe_line, "the same micro batch on each GPU"],
        prompt=f"One GPU becomes {ranks} under DDP. What happens to the memory of each?",
        right=Option(
            "it grows by DDP's gradient buckets",
            "Every rank holds the whole model, and buckets as large as its gradients: "
            f"{format_gib(buckets)}.",
        ),
        wrong=[
            Option(f"it falls to 1/{ranks}", "DDP copies the model; it divides the data only."),
            Option("optimizer state is divided, the rest stays", "That is ZeRO-1."),
            Option("activations are divided, the rest stays", "The micro batch of each GPU is what it was."),
        ],
        steps=case.terms("communication"),
        mistake="DDP buys throughput, not memory (gradient_as_bucket_view=True gives the buckets back).",
    )


@template("sharding.activations", _TOPIC, 2)
def activations(draw: Draw) -> Question:
    """What sharding weights, gradients and optimizer state does not help."""
    case = draw.case(
        LARGE[:2],
        precision="bf16",
        micro_batch=8,
        sequence_length=4096,
        sharding=Sharding(mode="zero3", data_parallel=8),
    )
    state = case.bytes("weights", "gradients", "optimizer_state")
    tokens = case.bytes("activations", "logits")
    return draw.options(
        case.job,
        setting=[
            case.size_line,
            case.batch_line,
            "ZeRO-3 over 8 GPUs",
            f"weights, gradients and optimizer state on each GPU: {format_gib(state)}",
        ],
        prompt="The job still runs out of memory, in the first forward. What helps?",
        right=Option(
            "checkpointing or a smaller micro batch",
            f"Activations and logits are {format_gib(tokens)} a GPU, and ZeRO does not divide them.",
        ),
        wrong=[
            Option("twice as many GPUs under ZeRO-3", "That halves what is already small."),
            Option(
                "offloading the optimizer to the CPU", "In the first forward there is no optimizer state yet."
            ),
            Option("ZeRO-2 instead of ZeRO-3", "That takes more memory for weights."),
        ],
        steps=case.terms(),
        mistake="Data parallel ranks have their own tokens: only tensor, sequence or pipeline "
        "parallelism divides those.",
    )


@template("sharding.offload-on-spark", _TOPIC, 2)
def offload_on_spark(draw: Draw) -> Question:
    """CPU offload where there is one memory."""
    case = draw.case(LARGE[:3], precision=_CLASSIC, checkpointing="full", device="spark")
    state = case.bytes("optimizer_state", "master_weights")
    job = case.job.with_(sharding=Sharding(mode="zero2", data_parallel=1, offload="cpu"))
    return draw.options(
        job,
        setting=[case.size_line, _CLASSIC_LINE, "a DGX Spark: CPU and GPU share one memory"],
        prompt="The optimizer state is offloaded to the CPU. How much memory does that free on the machine?",
        right=Option(
            "none", "It is the same pool: the bytes move from one side of the counter to the other."
        ),
        wrong=[
            Option(
                format_gib(state), "That is what leaves a discrete GPU; here it stays in the same memory."
            ),
            Option(format_gib(state // 2), "Nothing is halved: it stays whole, in the same memory."),
            Option(
                format_gib(case.bytes("weights")),
                "Weights are needed by the GPU, and offloading the optimizer would not move them.",
            ),
        ],
        steps=[Step("freed", "0 B: torch's counters fall, MemAvailable does not rise")],
        mistake="On a Spark, shrink the optimizer state (8-bit, pure bf16, LoRA) or send it to the disk.",
    )


@template("sharding.offload-host", _TOPIC, 2)
def offload_host(draw: Draw) -> Question:
    """What offload asks of the host."""
    case = draw.case(LARGE[:3], precision=_CLASSIC, checkpointing="full", device="h100-80gb")
    value = case.parameters * 12
    return draw.number(
        case.job.with_(sharding=Sharding(mode="zero2", data_parallel=1, offload="cpu")),
        setting=[
            case.size_line,
            _CLASSIC_LINE,
            "one H100; ZeRO-Offload of optimizer state and master weights",
        ],
        prompt="How much host memory do they take?",
        value=value,
        unit="GB",
        slips=[
            Slip(
                case.parameters * 8, "forgot the master copy", "The fp32 master weights go with the moments."
            ),
            Slip(case.parameters * 16, "moved everything", "16-bit weights and gradients stay on the GPU."),
            Slip(case.parameters * 4, "forgot Adam's moments", "The moments are the larger part."),
        ],
        steps=[Step("on the host", f"{case.parameters:,} × 12 B = {value / GB:.1f} GB")],
        mistake="12 bytes a parameter leave the GPU, 4 stay, and the update runs at the host's speed.",
    )


@template("sharding.stage-difference", _TOPIC, 2)
def stage_difference(draw: Draw) -> Question:
    """What the next stage saves."""
    first = draw.choice(_STAGES[:2])
    second: ShardingMode = "zero2" if first == "zero1" else "zero3"
    ranks = draw.choice([4, 8, 16])
    case = draw.case(
        LARGE, precision=_CLASSIC, checkpointing="full", sharding=Sharding(mode=second, data_parallel=ranks)
    )
    value = case.parameters * 2 * (1 - 1 / ranks)
    return draw.number(
        case.job,
        setting=[case.size_line, _CLASSIC_LINE, f"{ranks} GPUs"],
        prompt=f"How much does each GPU save when {_NAMES[first]} becomes {_NAMES[second]}?",
        value=value,
        unit="GB",
        slips=[
            Slip(case.parameters * 2 / ranks, "gave what stays", "That is the part each GPU still holds."),
            Slip(
                case.parameters * 4 * (1 - 1 / ranks),
                "took them for fp32",
                "Both are 2 bytes in this recipe.",
            ),
        ],
        steps=[
            Step(
                "saved",
                f"{case.parameters:,} × 2 B × (1 − 1/{ranks}) = {value / GB:.1f} GB",
            )
        ],
        mistake="Each of the two later stages divides 2 bytes a parameter; stage 1 divides 12.",
    )


@template("sharding.gathered", _TOPIC, 3)
def gathered(draw: Draw) -> Question:
    """What FSDP holds whole."""
    sharding = Sharding(mode="fsdp2", data_parallel=64)
    case = draw.case(LARGE[1:], precision="fsdp_mp_bf16", checkpointing="full", sharding=sharding)
    a = case.architecture
    block = sum(p.numel for p in a.blocks[a.layer_kinds[0]])
    value = gathered_parameters(a, sharding) * 2
    return draw.number(
        case.job,
        setting=[
            case.size_line,
            f"each block {block / 1e6:,.0f} million parameters, embedding, head and last norm "
            f"{(a.parameter_count - block * a.layers) / 1e6:,.0f} million",
            "FSDP2 gathers in bf16, resharding after forward, one block ahead; the root stays gathered",
        ],
        prompt="How much do gathered weights take on each GPU at once?",
        value=value,
        unit="GiB",
        slips=[
            Slip(
                a.parameter_count * 2, "gathered the whole model", "Blocks are gathered one after the other."
            ),
            Slip(
                value - block * 2,
                "forgot the block ahead",
                "The next block is fetched while this one computes.",
            ),
            Slip(block * 4, "forgot the root", "Embedding and head stay gathered through the step."),
        ],
        steps=[
            Step("parameters", f"root + 2 blocks = {gathered_parameters(a, sharding):,}"),
            *(s for s in case.terms("communication")),
        ],
        mistake="Sharding over more GPUs does not shrink this: it is the floor of ZeRO-3.",
    )


@template("sharding.two-sparks", _TOPIC, 2)
def two_sparks(draw: Draw) -> Question:
    """Two machines and ZeRO-3."""
    case = draw.case(LARGE[:3], precision=["bf16", _CLASSIC], checkpointing="full", device="spark")
    each = 8 if case.job.precision == "bf16" else 16
    sharding = Sharding(mode="zero3", data_parallel=2)
    value = case.bytes("weights", "master_weights", "gradients", "optimizer_state", sharding=sharding)
    usable = device("spark").usable_bytes
    return draw.number(
        case.job.with_(sharding=sharding),
        setting=[
            case.size_line,
            f"AdamW, {each} bytes a parameter with weights and gradients",
            f"two DGX Sparks with {format_gib(usable)} usable each, ZeRO-3",
        ],
        prompt="How much do weights, gradients and optimizer state take on each of the two?",
        value=value,
        unit="GiB",
        slips=[
            Slip(value * 2, "divided nothing", "ZeRO-3 deals all of it out to both."),
            Slip(
                case.parameters * 2 / 2,
                "counted weights only",
                "Gradients and moments are divided and held too.",
            ),
        ],
        steps=[
            Step("each", f"{case.parameters:,} × {each} B / 2 = {format_gib(value)}"),
            Step(
                "of",
                f"{format_gib(usable)} usable: {'fits' if value < usable else 'does not fit'}, with no "
                "activations yet",
            ),
        ],
        mistake="Two machines are one pool for all that is sharded, but each needs its own activations.",
    )


TEMPLATES: tuple[Template, ...] = (
    per_parameter,
    per_gpu,
    what,
    fewest,
    limit,
    ddp,
    activations,
    offload_on_spark,
    offload_host,
    stage_difference,
    gathered,
    two_sparks,
)
