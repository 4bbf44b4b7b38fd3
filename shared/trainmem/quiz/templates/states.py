"""Bytes per parameter: weights, gradients, optimizer state, master weights, cast copies."""

from __future__ import annotations

from typing import Final

from trainmem.job import Optimizer, Precision
from trainmem.quiz.cases import LARGE, OPTIMIZER_NAMES, PLAIN, PRECISION_NAMES, SMALL, count_in_words
from trainmem.quiz.draw import Draw, Template, template
from trainmem.quiz.question import Option, Question, Slip, Step
from trainmem.units import GIB, format_gib
from trainmem.whiteboard.optimizer_state import adafactor_elements
from trainmem.whiteboard.states import RECIPES, bytes_per_parameter, recipe_sum
from trainmem.whiteboard.term import factor

__all__ = ["TEMPLATES"]

_TOPIC: Final = "bytes per parameter"
_RECIPES: list[Precision] = [
    "fp32",
    "amp_bf16",
    "bf16",
    "bf16_kahan",
    "bf16_master",
    "bf16_master_fp32_grads",
]

_LIGHTER: list[Optimizer] = ["sgd_momentum", "sgd", "adafactor"]
_DEARER: list[Precision] = ["amp_bf16", "bf16_master", "bf16_kahan"]


def _sum_step(precision: Precision) -> Step:
    parts = recipe_sum(precision)
    numbers = " + ".join(f"{factor(size)} ({name})" for name, size in parts)
    return Step("bytes a parameter", f"{numbers} = {factor(sum(size for _, size in parts))} B")


def _per_parameter_slips(precision: Precision) -> list[Slip]:
    """What forgetting one part of the sum gives, in bytes a parameter."""
    recipe, total = RECIPES[precision], bytes_per_parameter(precision)
    slips = [
        Slip(
            total - recipe.state_bytes,
            "forgot the second Adam moment",
            "Adam keeps two numbers a parameter, the mean of gradients and of their squares; that is one.",
        ),
        Slip(total - recipe.gradient_bytes, "forgot gradients", "That leaves the gradients out."),
    ]
    if recipe.master_bytes:
        why = "That leaves out the fp32 master weights that the optimizer updates."
        slips.insert(0, Slip(total - recipe.master_bytes, "forgot the master copy", why))
    if recipe.cast_bytes:
        why = "That leaves out the 16-bit copies of the weights that autocast keeps for forward and backward."
        slips.append(Slip(total - recipe.cast_bytes, "forgot the cast copies", why))
    if recipe.compensation_bytes:
        why = "That leaves out the compensation that Kahan summation keeps for each weight."
        slips.append(Slip(total - recipe.compensation_bytes, "forgot the compensation", why))
    return slips


@template("states.per-parameter", _TOPIC, 1)
def per_parameter(draw: Draw) -> Question:
    """The bytes of one parameter under a recipe."""
    case = draw.case(SMALL, precision=_RECIPES, micro_batch=8)
    precision = case.job.precision
    return draw.number(
        case.job,
        setting=[PRECISION_NAMES[precision], "optimizer AdamW"],
        prompt="How many bytes does one parameter cost, before any activations?",
        value=bytes_per_parameter(precision),
        unit="B per parameter",
        tolerance=0,
        slips=_per_parameter_slips(precision),
        steps=[_sum_step(precision)],
        mistake="Say the parts aloud: weights, gradients, two moments, then what the precision adds.",
    )


@template("states.total", _TOPIC, 1)
def total(draw: Draw) -> Question:
    """Weights, gradients and optimizer state of a whole model."""
    case = draw.case(SMALL, precision=_RECIPES, micro_batch=8)
    count, precision = case.parameters, case.job.precision
    value = count * bytes_per_parameter(precision)
    return draw.number(
        case.job,
        setting=[case.size_line, f"AdamW; {PRECISION_NAMES[precision]}"],
        prompt="How much memory does everything made of parameters take: weights and their copies, "
        "gradients, optimizer state?",
        value=value,
        unit="GiB",
        slips=[Slip(s.value * count, s.name, s.why) for s in _per_parameter_slips(precision)],
        steps=[
            _sum_step(precision),
            Step("all parameters", f"{count:,} × {factor(value / count)} B = {format_gib(round(value))}"),
        ],
        mistake="Billions of parameters times bytes gives GB; GiB is 7% less.",
    )


@template("states.moments", _TOPIC, 1)
def moments(draw: Draw) -> Question:
    """Adam's two moments."""
    case = draw.case(SMALL, precision=["amp_bf16", "fp32", "bf16", "bf16_master"], micro_batch=4)
    each = RECIPES[case.job.precision].state_bytes
    value = case.bytes("optimizer_state")
    return draw.number(
        case.job,
        setting=[case.size_line, f"AdamW; {PRECISION_NAMES[case.job.precision]}"],
        prompt="How large is the optimizer state alone?",
        value=value,
        unit="GiB",
        slips=[
            Slip(value / 2, "forgot the second Adam moment", "That is one moment; Adam keeps two."),
            Slip(
                value * 2 if each == 2 else value / 2,
                "wrong dtype of the moments",
                f"The moments take the dtype of what the optimizer updates, here {each} bytes each.",
            ),
            Slip(
                case.parameters * (2 * each + 4),
                "counted master weights or gradients",
                "That adds another 4 bytes a parameter, which is not optimizer state.",
            ),
        ],
        steps=case.terms("optimizer_state"),
        mistake="Two moments, in the dtype of the tensor that the optimizer updates.",
    )


@template("states.eight-bit", _TOPIC, 2)
def eight_bit(draw: Draw) -> Question:
    """What 8-bit Adam saves."""
    case = draw.case(SMALL, precision="amp_bf16", micro_batch=8)
    before, after = case.bytes("optimizer_state"), case.bytes("optimizer_state", optimizer="adamw8bit")
    value = before - after
    return draw.number(
        case.job.with_(optimizer="adamw8bit"),
        setting=[case.size_line, PRECISION_NAMES["amp_bf16"]],
        prompt="AdamW is replaced by 8-bit AdamW. How much memory does that save?",
        value=value,
        unit="GiB",
        slips=[
            Slip(value / 2, "forgot the second Adam moment", "Both moments shrink, from 8 bytes to about 2."),
            Slip(
                case.parameters * 2,
                "took 8-bit for half of 16-bit",
                "The moments were fp32: 8 bytes for the two, not 4.",
            ),
            Slip(after, "gave what is left", "That is the size of the 8-bit state, not what it saves."),
        ],
        steps=[
            *case.terms("optimizer_state"),
            *case.terms("optimizer_state", optimizer="adamw8bit"),
            Step("saved", f"{format_gib(before)} − {format_gib(after)} = {format_gib(value)}"),
        ],
        mistake="Only the optimizer state shrinks; weights and gradients stay as they are.",
    )


@template("states.optimizer-swap", _TOPIC, 2)
def optimizer_swap(draw: Draw) -> Question:
    """What a simpler optimizer saves."""
    other: Optimizer = draw.choice(_LIGHTER)
    case = draw.case(SMALL, precision="amp_bf16", micro_batch=8)
    before, after = case.bytes("optimizer_state"), case.bytes("optimizer_state", optimizer=other)
    value = before - after
    half, all_of_it = case.parameters * 4, case.parameters * 8
    return draw.number(
        case.job.with_(optimizer=other),
        setting=[case.size_line, f"AdamW; {PRECISION_NAMES['amp_bf16']}"],
        prompt=f"AdamW is replaced by {OPTIMIZER_NAMES[other]}. How much memory does that save?",
        value=value,
        unit="GiB",
        slips=[
            Slip(half, "dropped one moment only", "This optimizer keeps no full-size moment at all."),
            Slip(all_of_it, "dropped both moments", "Momentum is still one fp32 number a parameter."),
            Slip(all_of_it + half, "dropped gradients too", "Every optimizer needs the gradients."),
        ],
        steps=[
            *case.terms("optimizer_state"),
            *case.terms("optimizer_state", optimizer=other),
            Step("saved", f"{format_gib(before)} − {format_gib(after)} = {format_gib(value)}"),
        ],
        mistake="AdamW 8 B a parameter, momentum 4 B, plain SGD nothing, Adafactor a row and a column a "
        "matrix.",
    )


@template("states.pure-bf16", _TOPIC, 2)
def pure_bf16(draw: Draw) -> Question:
    """From AMP to pure bf16."""
    case = draw.case(SMALL, precision="amp_bf16", micro_batch=4)
    before = case.bytes("weights", "gradients", "optimizer_state", "cast_cache")
    after = case.bytes("weights", "gradients", "optimizer_state", "cast_cache", precision="bf16")
    count = case.parameters
    return draw.number(
        case.job.with_(precision="bf16"),
        setting=[case.size_line, "AdamW", "from AMP over fp32 weights to pure bf16"],
        prompt="How much of the weights, gradients, optimizer state and cast copies goes away?",
        value=before - after,
        unit="GiB",
        slips=[
            Slip(count * 8, "forgot the cast copies", "AMP costs 18 bytes with its cast copies, not 16."),
            Slip(count * 6, "halved weights and gradients only", "The moments become bf16 too."),
            Slip(after, "gave what is left", "That is what pure bf16 needs, not the difference."),
        ],
        steps=[
            _sum_step("amp_bf16"),
            _sum_step("bf16"),
            Step("difference", f"{count:,} × (18 − 8) B = {format_gib(before - after)}"),
        ],
        mistake="AMP keeps everything in fp32 and adds 16-bit copies: 18 bytes. Pure bf16 is 8.",
    )


@template("states.master-weights", _TOPIC, 1)
def master_weights(draw: Draw) -> Question:
    """The fp32 copy of the weights."""
    case = draw.case(LARGE[:4], precision=["bf16_master", "bf16_master_fp32_grads"], checkpointing="full")
    value = case.bytes("master_weights")
    return draw.number(
        case.job,
        setting=[case.size_line, PRECISION_NAMES[case.job.precision]],
        prompt="How much memory do the master weights alone take?",
        value=value,
        unit="GiB",
        slips=[
            Slip(value / 2, "took them for 16-bit", "That is the bf16 copy; the master copy is fp32."),
            Slip(value * 1.5, "counted both copies", "That adds the bf16 weights to the master copy."),
            Slip(value * 3, "counted the moments too", "That adds Adam's two moments."),
        ],
        steps=case.terms("master_weights"),
        mistake="Four bytes each: a small update would vanish in bf16's 8 bits of mantissa.",
    )


@template("states.cast-copies", _TOPIC, 1)
def cast_copies(draw: Draw) -> Question:
    """What autocast keeps beside fp32 weights."""
    case = draw.case(PLAIN, precision="amp_bf16", micro_batch=8)
    value = case.bytes("cast_cache")
    return draw.number(
        case.job,
        setting=[case.size_line, PRECISION_NAMES["amp_bf16"]],
        prompt="How much memory do autocast's own copies of the weights take?",
        value=value,
        unit="GiB",
        slips=[
            Slip(
                value * 2,
                "took them for fp32",
                "The copies are 16-bit; the weights they are made of are fp32.",
            ),
            Slip(value * 3, "counted the weights too", "That adds the fp32 weights themselves."),
        ],
        steps=case.terms("cast_cache"),
        mistake="AMP does not shrink weights: it adds a 2-byte copy of each to the 4-byte original.",
    )


@template("states.largest-model", _TOPIC, 2)
def largest_model(draw: Draw) -> Question:
    """The largest model whose weights, gradients and optimizer state fit a budget."""
    budget = draw.choice([24, 40, 80, 118, 141]) * GIB
    case = draw.case(LARGE[:2], precision=_RECIPES, checkpointing="full")
    each = bytes_per_parameter(case.job.precision)
    value = budget / each
    return draw.number(
        case.job,
        setting=[
            f"{format_gib(budget)} for everything but activations and logits",
            f"AdamW; {PRECISION_NAMES[case.job.precision]}",
        ],
        prompt="How many parameters can a model have before that budget is full?",
        value=value,
        unit="parameters",
        slips=[
            Slip(
                budget / RECIPES[case.job.precision].weight_bytes,
                "counted weights only",
                "That many weights would fit, with no room for gradients and moments.",
            ),
            Slip(budget / GIB * 1e9 / each, "GiB for GB", "A GiB is 1.074 billion bytes, not a billion."),
            *(Slip(budget / s.value, s.name, s.why) for s in _per_parameter_slips(case.job.precision)),
        ],
        steps=[
            _sum_step(case.job.precision),
            Step("parameters", f"{format_gib(budget)} / {factor(each)} B = {count_in_words(value)}"),
        ],
        mistake="And this leaves nothing for activations: about a tenth less is a fair answer.",
    )


@template("states.adafactor", _TOPIC, 2)
def adafactor(draw: Draw) -> Question:
    """Adafactor's second moment of one matrix."""
    case = draw.case([*LARGE[:4]], optimizer="adafactor", precision="bf16", checkpointing="full")
    a = case.architecture
    rows, columns = a.intermediate_size, a.hidden_size
    value = adafactor_elements((rows, columns))
    return draw.number(
        case.job,
        setting=[f"one weight matrix of {rows:,} × {columns:,}", "Adafactor, no momentum"],
        prompt="How many numbers of optimizer state does Adafactor keep for it?",
        value=value,
        unit="elements",
        tolerance=0.01,
        slips=[
            Slip(
                rows * columns, "took it for Adam's second moment", "It does not keep the matrix of squares."
            ),
            Slip(2 * rows * columns, "took it for Adam", "Those are Adam's two full moments."),
            Slip(rows, "forgot the columns", "It keeps a number for each row and one for each column."),
            Slip(columns, "forgot the rows", "It keeps a number for each row and one for each column."),
        ],
        steps=[Step("rows + columns", f"{rows:,} + {columns:,} = {value:,}")],
        mistake="Mean squares of rows and of columns; their outer product stands for the whole matrix.",
    )


@template("states.missing-part", _TOPIC, 1)
def missing_part(draw: Draw) -> Question:
    """Which part of the sum is left out."""
    precision = draw.choice(["bf16_master", "amp_bf16", "bf16_master_fp32_grads"])
    case = draw.case(SMALL, precision=precision, micro_batch=8)
    parts = [name for name, _ in recipe_sum(case.job.precision)]
    sizes = dict(recipe_sum(case.job.precision))
    gone = draw.choice(parts)
    left = " + ".join(f"{factor(sizes[name])} B ({name})" for name in parts if name != gone)
    all_parts = ["weights", "master weights", "gradients", "optimizer state", "cast cache", "activations"]
    others = [name for name in all_parts if name not in parts][:2] + [n for n in parts if n != gone][:1]
    return draw.options(
        case.job,
        setting=[f"AdamW; {PRECISION_NAMES[case.job.precision]}"],
        prompt=f"Someone counts, for each parameter: {left}. What is missing?",
        right=Option(f"{gone}, {factor(sizes[gone])} B", "With it the sum is complete."),
        wrong=[
            Option(
                f"{name}, {factor(sizes.get(name, 4))} B",
                "It is in the sum already." if name in parts else "This recipe has no such part a parameter.",
            )
            for name in others
        ],
        steps=[_sum_step(case.job.precision)],
        mistake="Go through the same list every time: weights, master, gradients, two moments, casts.",
    )


@template("states.why-master", _TOPIC, 2)
def why_master(draw: Draw) -> Question:
    """Why master weights are fp32."""
    case = draw.case(LARGE[:4], precision="bf16_master", checkpointing="full")
    rate = draw.choice(["1e-5", "3e-5", "1e-4"])
    return draw.options(
        case.job,
        setting=[f"a weight of 1.0, an update of {rate}", "bf16: 8 bits of significand"],
        prompt="Why does classic mixed precision keep fp32 master weights?",
        right=Option(
            "In bf16 the sum rounds back to 1.0, so the weight never moves",
            "Next to 1.0 bf16 has steps of 1/128, so an update that small is lost.",
        ),
        wrong=[
            Option(
                "bf16 would overflow in the update", "bf16 has fp32's range; it is precision that it lacks."
            ),
            Option(
                "Matrix products need fp32 inputs",
                "They read the bf16 copy; that is what makes them fast.",
            ),
            Option(
                "Gradients could not be averaged over ranks in bf16",
                "They can be, with some loss; it has nothing to do with the weights' copy.",
            ),
        ],
        steps=[
            Step("master weights", "P × 4 B, beside the bf16 weights' P × 2 B"),
            Step("smallest step of bf16 above 1", "2^-7 = 0.0078, far above the update"),
        ],
        mistake="Range is fp16's problem (loss scaling); precision is bf16's (master weights, Kahan, or "
        "luck).",
    )


@template("states.kahan", _TOPIC, 2)
def kahan(draw: Draw) -> Question:
    """What keeps pure bf16 training from standing still."""
    case = draw.case(SMALL, precision="bf16_kahan", micro_batch=4)
    value = case.bytes("weights", "gradients", "optimizer_state")
    return draw.number(
        case.job,
        setting=[case.size_line, "AdamW; pure bf16, each weight with a bf16 Kahan compensation"],
        prompt="How much do weights, gradients and optimizer state take, compensation and all?",
        value=value,
        unit="GiB",
        slips=[
            Slip(
                case.parameters * 8, "forgot the compensation", "That is pure bf16 without the compensation."
            ),
            Slip(
                case.parameters * 12, "took it for fp32", "The compensation is bf16 like the weight: 2 bytes."
            ),
            Slip(
                case.parameters * 16, "took it for master weights", "No fp32 copy is kept; that is the point."
            ),
        ],
        steps=case.terms("weights", "gradients", "optimizer_state"),
        mistake="8 bytes and 2 for the compensation: 10, against 16 with master weights.",
    )


@template("states.two-recipes", _TOPIC, 2)
def two_recipes(draw: Draw) -> Question:
    """How many times more one recipe costs than another."""
    case = draw.case(SMALL, precision="bf16", micro_batch=4)
    other: Precision = draw.choice(_DEARER)
    large = bytes_per_parameter(other)
    value = large / bytes_per_parameter("bf16")
    return draw.number(
        case.job,
        setting=[
            f"first: {PRECISION_NAMES['bf16']}",
            f"second: {PRECISION_NAMES[other]}",
            "AdamW",
        ],
        prompt="Activations and logits apart, how many times the memory of the first does the second take?",
        value=value,
        unit="times",
        tolerance=0.02,
        slips=[
            Slip(
                2.0, "fp32 is twice bf16", "The recipes differ in which copies they keep, not only in width."
            ),
            Slip(1 / value, "turned it around", "That is the first over the second."),
        ],
        steps=[
            _sum_step("bf16"),
            _sum_step(other),
            Step("ratio", f"{factor(large)} / 8 = {value:g}"),
        ],
        mistake="Write both sums down; do not reason from the width of a number.",
    )


TEMPLATES: tuple[Template, ...] = (
    per_parameter,
    total,
    moments,
    eight_bit,
    optimizer_swap,
    pure_bf16,
    master_weights,
    cast_copies,
    largest_model,
    adafactor,
    missing_part,
    why_master,
    kahan,
    two_recipes,
)
