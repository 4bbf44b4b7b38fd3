"""Design: this job on this machine does not fit. What do you change, in what order?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from trainmem.device import Device, device
from trainmem.job import Lora, TrainingJob
from trainmem.quiz.cases import GATED, LARGE, PLAIN, Case, Model
from trainmem.quiz.draw import Draw, Template, template
from trainmem.quiz.question import Option, Question, Slip, Step
from trainmem.units import format_gib

__all__ = ["TEMPLATES"]

_TOPIC: Final = "design"
_MACHINES = ("rtx-4090", "a100-40gb", "l40s", "h100-80gb", "spark", "h200")
# a verdict closer to the limit than this is not one for a whiteboard
_CLEAR = 0.07


def _usable(machine: Device) -> str:
    return f"{machine.title}, {format_gib(machine.usable_bytes)} usable"


def _fits(size_bytes: int, machine: Device) -> bool | None:
    """Whether it fits by the whiteboard; None when it is too close to call."""
    ratio = size_bytes / machine.usable_bytes
    return None if abs(ratio - 1) < _CLEAR else ratio < 1


def _plans_line(case: Case, changes: Mapping[str, Any]) -> str:
    return format_gib(case.bytes(**changes))


_CHEAPEST_FIRST: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("fused attention instead of eager", {"attention": "sdpa"}, "free: same mathematics, faster"),
    ("a fused loss in chunks", {"loss": "liger_fused"}, "almost free: same mathematics"),
    ("a quarter of the micro batch, four times the accumulation", {}, "same gradient, smaller products"),
    ("activation checkpointing", {"checkpointing": "full"}, "same mathematics, about a third more compute"),
    ("8-bit AdamW", {"optimizer": "adamw8bit"}, "changes numerics a little"),
    ("LoRA over a bf16 base", {"lora": Lora(rank=16), "precision": "bf16"}, "trains fewer parameters"),
)


@template("design.first-lever", _TOPIC, 3)
def first_lever(draw: Draw) -> Question:
    """The cheapest single lever that makes a job fit."""
    for _ in range(300):
        model = draw.choice([*PLAIN[1:], *GATED[:2]])
        machine = device(draw.choice(_MACHINES))
        length = 1024 if model in PLAIN else draw.choice([1024, 2048, 4096])
        micro_batch = draw.choice([4, 8, 16])
        case = Case(
            TrainingJob(
                model=model.name,
                micro_batch=micro_batch,
                sequence_length=length,
                precision="amp_bf16",
                attention=draw.choice(["sdpa", "eager"]),
                device=machine.name,
            )
        )
        if _fits(case.bytes(), machine) is not False:
            continue
        plans = []
        for text, changes, price in _CHEAPEST_FIRST:
            changed = dict(changes)
            if "quarter" in text:
                changed = {"micro_batch": micro_batch // 4, "accumulation": 4}
            if text.startswith("fused attention") and case.job.attention == "sdpa":
                continue
            size = case.bytes(**changed)
            plans.append((text, changed, price, size, _fits(size, machine)))
        if any(fit is None for *_, fit in plans):
            continue
        winners = [plan for plan in plans if plan[4]]
        losers = [plan for plan in plans if not plan[4]]
        if not winners or not losers:
            continue
        text, changed, price, size, _ = winners[0]
        others = [*losers[:2], *winners[1:]][:3]
        return draw.options(
            case.job.with_(**changed),
            setting=[
                _usable(machine),
                case.size_line,
                case.batch_line,
                case.recipe_line,
                case.levers_line,
                f"whiteboard total: {format_gib(case.bytes())}",
            ],
            prompt="It does not fit. Which one change makes it fit at the lowest price?",
            right=Option(text, f"It leaves {format_gib(size)}. The price: {price}."),
            wrong=[
                Option(other, f"It fits too ({format_gib(s)}), at a higher price: {p}.")
                if fit
                else Option(other, f"It still needs {format_gib(s)}.")
                for other, _, p, s, fit in others
            ],
            steps=[
                Step(t, f"{format_gib(s)}: {'fits' if fit else 'does not fit'}; {p}")
                for t, _, p, s, fit in plans
            ],
            mistake="Free first, then identical mathematics, then numerics, then fewer parameters.",
        )
    raise AssertionError("no case found")


_METHODS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("full fine-tuning, AMP, AdamW", {"precision": "amp_bf16"}),
    ("full fine-tuning, pure bf16, AdamW", {"precision": "bf16"}),
    ("full fine-tuning, pure bf16, 8-bit AdamW", {"precision": "bf16", "optimizer": "adamw8bit"}),
    ("LoRA over a bf16 base", {"precision": "bf16", "lora": Lora(rank=16)}),
    ("QLoRA over an NF4 base", {"precision": "bf16", "lora": Lora(rank=16), "base_quantization": "nf4"}),
)


@template("design.method", _TOPIC, 3)
def method(draw: Draw) -> Question:
    """The fullest method that fits."""
    for _ in range(300):
        machine, model = device(draw.choice(_MACHINES)), draw.choice([*GATED[:5], *LARGE])
        case = Case(
            TrainingJob(model=model.name, sequence_length=2048, checkpointing="full", device=machine.name)
        )
        sizes = [case.bytes(**changes) for _, changes in _METHODS]
        fits = [_fits(size, machine) for size in sizes]
        if None in fits or True not in fits or fits.index(True) in (0,):
            continue
        best = fits.index(True)
        shown = sorted(
            {best, *range(max(0, best - 2), min(len(_METHODS), best + 3))}, key=lambda i: abs(i - best)
        )[:4]
        return draw.options(
            case.job.with_(**_METHODS[best][1]),
            setting=[
                _usable(machine),
                case.size_line,
                "micro batch 1, sequence length 2,048, every block checkpointed, fused attention",
            ],
            prompt="Which is the fullest kind of training that fits, by the whiteboard?",
            right=Option(_METHODS[best][0], f"It needs {format_gib(sizes[best])}."),
            wrong=[
                Option(
                    _METHODS[i][0],
                    f"It needs {format_gib(sizes[i])}."
                    if not fits[i]
                    else f"It fits with {format_gib(sizes[i])}, but a fuller one does too.",
                )
                for i in shown
                if i != best
            ],
            steps=[
                Step(_METHODS[i][0], f"{format_gib(sizes[i])}: {'fits' if fits[i] else 'does not fit'}")
                for i in range(len(_METHODS))
            ],
            mistake="16 or 18, 8, about 6, 2, about half a byte a parameter: five ceilings to know by heart.",
        )
    raise AssertionError("no case found")


@template("design.machine", _TOPIC, 3)
def machine_for(draw: Draw) -> Question:
    """The smallest machine for a job."""
    ladder = [device(name) for name in ("rtx-4090", "l40s", "h100-80gb", "spark", "h200")]
    ladder.sort(key=lambda m: m.usable_bytes)
    for _ in range(300):
        model = draw.choice([*PLAIN, *GATED])
        case = Case(
            TrainingJob(
                model=model.name,
                micro_batch=draw.choice([1, 2, 4, 8]),
                sequence_length=1024 if model in PLAIN else 2048,
                precision=draw.choice(["amp_bf16", "bf16"]),
                checkpointing=draw.choice(["none", "full"]),
                device="h200",
            )
        )
        size = case.bytes()
        fits = [_fits(size, m) for m in ladder]
        if None in fits or True not in fits or fits[0]:
            continue
        best = fits.index(True)
        shown = [i for i in range(len(ladder)) if abs(i - best) <= 2][:4]
        if best not in shown:
            continue
        return draw.options(
            case.job.with_(device=ladder[best].name),
            setting=[case.model_line, case.batch_line, case.recipe_line, case.levers_line],
            prompt="Which is the smallest of these machines that fits the job, by the whiteboard?",
            right=Option(_usable(ladder[best]), f"The whiteboard says {format_gib(size)}."),
            wrong=[
                Option(
                    _usable(ladder[i]),
                    "It fits, but a smaller one does too."
                    if fits[i]
                    else f"The whiteboard says {format_gib(size)}.",
                )
                for i in shown
                if i != best
            ],
            steps=[*case.terms(), Step("total", format_gib(size))],
            mistake="Sum first, then look at machines; then leave a margin for what the whiteboard misses.",
            place=shown.index(best),
        )
    raise AssertionError("no case found")


@template("design.order", _TOPIC, 3)
def order(draw: Draw) -> Question:
    """In which order to pull levers."""
    case = draw.case(
        [*PLAIN[2:], *GATED[:2]],
        micro_batch=16,
        sequence_length=1024,
        precision="amp_bf16",
        attention="eager",
    )
    tokens = case.bytes("activations", "logits")
    return draw.options(
        case.job.with_(attention="sdpa"),
        setting=[
            case.size_line,
            case.batch_line,
            case.recipe_line,
            case.levers_line,
            f"activations and logits take {format_gib(tokens)} of {format_gib(case.bytes())}",
        ],
        prompt="It runs out of memory. In which order do you change things?",
        right=Option(
            "fused attention, smaller micro batch with accumulation, checkpointing, 8-bit AdamW, LoRA",
            "From free, through identical mathematics at a price in time, to what changes the result.",
        ),
        wrong=[
            Option(
                "LoRA, 8-bit AdamW, checkpointing, smaller micro batch, fused attention",
                "It gives up parameters before it has tried what is free.",
            ),
            Option(
                "8-bit AdamW, pure bf16, LoRA, then a smaller micro batch",
                "It shrinks what parameters take, while most of the memory is made of tokens.",
            ),
            Option(
                "checkpointing, LoRA, fused attention, smaller micro batch, 8-bit AdamW",
                "It pays a third more compute before it drops scores that cost nothing to drop.",
            ),
        ],
        steps=[
            Step("fused attention", _plans_line(case, {"attention": "sdpa"})),
            Step(
                "and micro batch 4, four times",
                _plans_line(case, {"attention": "sdpa", "micro_batch": 4, "accumulation": 4}),
            ),
            Step(
                "and checkpointing",
                _plans_line(
                    case, {"attention": "sdpa", "micro_batch": 4, "accumulation": 4, "checkpointing": "full"}
                ),
            ),
            Step(
                "and 8-bit AdamW",
                _plans_line(
                    case,
                    {
                        "attention": "sdpa",
                        "micro_batch": 4,
                        "accumulation": 4,
                        "checkpointing": "full",
                        "optimizer": "adamw8bit",
                    },
                ),
            ),
        ],
        mistake="Name the largest bucket, then the cheapest lever that moves it. Then ask again.",
    )


@template("design.long-context", _TOPIC, 3)
def long_context(draw: Draw) -> Question:
    """A long context with a large vocabulary."""
    models: Sequence[Model] = [GATED[0], GATED[1], GATED[5]]
    case = draw.case(models, micro_batch=1, sequence_length=[16384, 32768], precision="bf16")
    pairs: list[tuple[str, dict[str, Any]]] = [
        ("checkpointing and a fused loss", {"checkpointing": "full", "loss": "liger_fused"}),
        ("checkpointing and 8-bit AdamW", {"checkpointing": "full", "optimizer": "adamw8bit"}),
        ("a fused loss and 8-bit AdamW", {"loss": "liger_fused", "optimizer": "adamw8bit"}),
        ("LoRA and 8-bit AdamW", {"lora": Lora(rank=16), "optimizer": "adamw8bit"}),
    ]
    sizes = {text: case.bytes(**changes) for text, changes in pairs}
    best = min(sizes, key=lambda text: sizes[text])
    return draw.options(
        case.job.with_(**dict(pairs)[best]),
        setting=[case.model_line, case.batch_line, case.recipe_line, case.levers_line],
        prompt="Which pair of levers brings the whiteboard's total down the most?",
        right=Option(best, f"From {format_gib(case.bytes())} to {format_gib(sizes[best])}."),
        wrong=[Option(t, f"It leaves {format_gib(s)}.") for t, s in sizes.items() if t != best],
        steps=[*case.terms(), *(Step(t, format_gib(s)) for t, s in sizes.items())],
        mistake="Long contexts are made of tokens: blocks first, then logits; what parameters take does not grow.",
    )


@template("design.accumulation", _TOPIC, 1)
def accumulation(draw: Draw) -> Question:
    """Accumulation for a global batch."""
    ranks, micro, k = draw.choice([2, 4, 8]), draw.choice([2, 4, 8]), draw.choice([4, 8, 16])
    case = draw.case(PLAIN, micro_batch=micro, sequence_length=1024, precision="amp_bf16", accumulation=k)
    sequences = ranks * micro * k
    return draw.number(
        case.job,
        setting=[
            f"{sequences} sequences a step are wanted",
            f"{ranks} GPUs, data parallel; a micro batch of {micro} fits on each",
        ],
        prompt="How many micro batches must each GPU accumulate?",
        value=k,
        unit="count",
        tolerance=0,
        slips=[
            Slip(sequences / micro, "forgot the GPUs", "Each GPU does its part of the step."),
            Slip(sequences / ranks, "forgot the micro batch", "Each micro batch has several sequences."),
        ],
        steps=[Step("accumulation", f"{sequences} / ({ranks} × {micro}) = {k}")],
        mistake="Global batch = GPUs × micro batch × accumulation. Memory sees only the micro batch.",
    )


TEMPLATES: tuple[Template, ...] = (first_lever, method, machine_for, order, long_context, accumulation)
