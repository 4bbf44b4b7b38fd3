"""Reading a curve of allocated memory: phases, floors, teeth, leaks."""

from __future__ import annotations

from typing import Final

from trainmem.job import Optimizer
from trainmem.quiz.cases import LARGE, OPTIMIZER_NAMES, PLAIN, PRECISION_NAMES, Case
from trainmem.quiz.chart import Chart, Ribbon, Series
from trainmem.quiz.draw import Draw, Template, template
from trainmem.quiz.question import Option, Question, Slip, Step
from trainmem.quiz.replay import two_steps
from trainmem.quiz.timeline import curve, stacked, total_line
from trainmem.units import GIB, format_gib

__all__ = ["TEMPLATES"]

_TOPIC: Final = "timelines"
_ONE_STEP = "Allocated memory over one training step, in GiB."


@template("timelines.name-phase", _TOPIC, 1)
def name_phase(draw: Draw) -> Question:
    """Find the phase in the curve."""
    case = draw.case(PLAIN, micro_batch=[4, 8], sequence_length=1024, precision="amp_bf16")
    found = curve(case)
    phase, why = draw.choice(
        [
            ("forward", "memory climbs block by block while activations are saved"),
            ("backward", "it begins at the top, frees activations and leaves gradients behind"),
            ("optimizer", "it is the flat stretch after the fall, with a bump where foreach AdamW works"),
            ("zero_grad", "memory drops once, by the gradients"),
        ]
    )
    letters = dict(zip([name for name, _, _ in found.phases], "ABCD", strict=True))
    ribbons = [Ribbon(letters[name], start, end) for name, start, end in found.phases]
    options = {
        name: Option(
            f"stretch {letter}", f"{letter} is the {name} phase.".replace("zero_grad phase", "zero_grad call")
        )
        for name, letter in letters.items()
    }
    return draw.options(
        case.job,
        setting=[case.size_line, case.batch_line, case.recipe_line],
        prompt=f"Which stretch is {'optimizer.step()' if phase == 'optimizer' else phase}?",
        right=Option(f"stretch {letters[phase]}", f"In {phase} {why}."),
        wrong=[option for name, option in options.items() if name != phase],
        steps=[Step(phase, why)],
        mistake="Climb, top, fall, plateau, drop: forward, loss, backward, step, zero_grad.",
        chart=total_line(
            found, title="One step", alt=f"{_ONE_STEP} Four stretches are lettered A to D.", ribbons=ribbons
        ),
        by_text=True,
    )


@template("timelines.which-optimizer", _TOPIC, 2)
def which_optimizer(draw: Draw) -> Question:
    """Read the optimizer off the rise of the floor."""
    names: tuple[Optimizer, ...] = ("adamw_fused", "adamw8bit", "sgd_momentum", "sgd")
    case = draw.case(
        PLAIN[1:], micro_batch=4, sequence_length=1024, precision="amp_bf16", optimizer=list(names)
    )
    right = case.job.optimizer if case.job.optimizer in names else "adamw_fused"
    case = Case(case.job.with_(optimizer=right))
    rises = {name: case.bytes("optimizer_state", optimizer=name) for name in names}
    found = curve(case, steps=2, first=True)
    return draw.options(
        case.job,
        setting=[case.size_line, PRECISION_NAMES["amp_bf16"], "the first two steps, gradients set to None"],
        prompt="Which optimizer is it?",
        right=Option(
            OPTIMIZER_NAMES[right], f"The floor rises by {format_gib(rises[right])} after the first step."
        ),
        wrong=[
            Option(OPTIMIZER_NAMES[name], f"Its state would raise the floor by {format_gib(rises[name])}.")
            for name in names
            if name != right
        ],
        steps=[
            Step(OPTIMIZER_NAMES[name], f"the floor rises by {format_gib(rises[name])}") for name in names
        ],
        mistake="Compare the starts of steps 1 and 2; divide the rise by the number of parameters.",
        chart=total_line(
            found,
            title="Steps 1 and 2",
            alt="Allocated memory over the first two training steps, in GiB; "
            f"step 1 starts at {found.totals_bytes[0] / GIB:.1f}, "
            f"step 2 at {found.totals_bytes[len(found.levels) // 2] / GIB:.1f}.",
            ribbons=[
                Ribbon("step 1", 0, len(found.levels) // 2 - 1),
                Ribbon("step 2", len(found.levels) // 2, len(found.levels) - 1),
            ],
        ),
        by_text=True,
    )


@template("timelines.which-setting", _TOPIC, 2)
def which_setting(draw: Draw) -> Question:
    """Which setting makes a curve of this shape."""
    settings: list[tuple[str, dict[str, object], str]] = [
        ("nothing special: one micro batch, no checkpointing", {}, "one smooth climb and one smooth fall"),
        (
            "every block is checkpointed",
            {"checkpointing": "full"},
            "a low climb, then teeth while blocks are recomputed",
        ),
        (
            "four micro batches are accumulated",
            {"micro_batch": 2, "accumulation": 4},
            "four humps, the later ones on top of gradients",
        ),
        (
            "zero_grad(set_to_none=False)",
            {"zero_grad": "zeros"},
            "no drop at the end: gradients stay, as zeros",
        ),
    ]
    plain = draw.case(
        PLAIN[1:], micro_batch=8, sequence_length=1024, precision="amp_bf16", optimizer="adamw_fused"
    )
    index = draw.random.randrange(len(settings))
    text, changes, why = settings[index]
    case = Case(plain.job.with_(**changes))
    return draw.options(
        case.job,
        setting=[case.size_line, "AMP, fused AdamW; one later step, 8 sequences of 1,024 in all"],
        prompt="Which setting made this curve?",
        right=Option(text, f"It shows {why}."),
        wrong=[
            Option(other, f"That would show {shape}.")
            for i, (other, _, shape) in enumerate(settings)
            if i != index
        ],
        steps=[Step(other, shape) for other, _, shape in settings],
        mistake="Count humps, look for teeth, and compare the floor at both ends.",
        chart=total_line(
            curve(case),
            title="One step",
            alt=f"{_ONE_STEP} Peak {max(curve(case).totals_bytes) / GIB:.1f}, start "
            f"{curve(case).totals_bytes[0] / GIB:.1f}.",
        ),
    )


@template("timelines.leak", _TOPIC, 2)
def leak(draw: Draw) -> Question:
    """A floor that rises with every step."""
    case = draw.case(
        PLAIN[:3], micro_batch=[4, 8], sequence_length=1024, precision="amp_bf16", optimizer="adamw_fused"
    )
    a, job = case.architecture, case.job
    lost = job.micro_batch * job.sequence_length * a.vocab_size * 2
    found = curve(case, steps=4, leak_bytes=lost)
    return draw.options(
        job,
        setting=[
            case.shape_line,
            case.batch_line,
            f"each step ends {format_gib(lost)} higher than the one before",
        ],
        prompt="What is the most likely reason?",
        right=Option(
            "the loop appends the model's outputs to a list",
            f"16-bit logits are s b V × 2 B = {format_gib(lost)}, exactly the rise.",
        ),
        wrong=[
            Option("the optimizer's state grows", "It is made once, in the first step, and keeps its size."),
            Option("fragmentation", "That raises reserved memory; this curve is allocated memory."),
            Option("gradients are never cleared", "They would add into the same tensors and not grow."),
        ],
        steps=[
            Step(
                "logits",
                f"{job.sequence_length:,} × {job.micro_batch} × {a.vocab_size:,} × 2 B = {format_gib(lost)}",
            )
        ],
        mistake="A rise that repeats is something kept on purpose: compare its size with tensors you know.",
        chart=total_line(
            found,
            title="Four steps",
            alt=f"Allocated memory over four steps, in GiB: each starts {lost / GIB:.2f} higher than the "
            "one before.",
        ),
    )


@template("timelines.micro-batches", _TOPIC, 1)
def micro_batches(draw: Draw) -> Question:
    """Count the humps."""
    case = draw.case(
        PLAIN,
        micro_batch=2,
        sequence_length=1024,
        precision="amp_bf16",
        accumulation=[2, 3, 4, 6],
        optimizer="adamw_fused",
    )
    value = case.job.accumulation
    return draw.number(
        case.job,
        setting=[case.size_line, "AMP, fused AdamW; one step"],
        prompt="How many micro batches does this step accumulate?",
        value=value,
        unit="count",
        tolerance=0,
        slips=[
            Slip(value - 1, "missed one", "The first hump is lower: there are no gradients under it yet."),
            Slip(2 * value, "counted climbs and falls", "A climb and its fall belong to one micro batch."),
        ],
        steps=[Step("humps", f"{value}: one forward and backward each")],
        mistake="From the second hump on gradients lie underneath.",
        chart=total_line(
            curve(case),
            title="One step",
            alt=f"{_ONE_STEP} It climbs and falls {value} times before a flat stretch.",
        ),
    )


@template("timelines.act", _TOPIC, 3)
def act(draw: Draw) -> Question:
    """Which lever lowers this peak."""
    at_step = draw.choice([True, False])
    if at_step:
        case = draw.case(
            LARGE[:3], micro_batch=2, sequence_length=1024, precision="bf16", checkpointing="full"
        )
    else:
        case = draw.case(PLAIN[:3], micro_batch=16, sequence_length=1024, precision="amp_bf16")
    levers: list[tuple[str, dict[str, object]]] = [
        ("fused AdamW instead of foreach", {"optimizer": "adamw_fused"}),
        ("half the micro batch", {"micro_batch": max(1, case.job.micro_batch // 2)}),
        ("zero_grad(set_to_none=False)", {"zero_grad": "zeros"}),
        ("a smaller learning rate", {}),
    ]
    before = max(curve(case).totals_bytes)
    saved = {
        text: before - max(curve(Case(case.job.with_(**changes))).totals_bytes) for text, changes in levers
    }
    right = max(saved, key=lambda text: saved[text])
    changes = next(c for text, c in levers if text == right)
    found = curve(case)
    return draw.options(
        case.job.with_(**changes),
        setting=[
            case.size_line,
            case.batch_line,
            f"foreach AdamW; {PRECISION_NAMES[case.job.precision]}",
            case.levers_line,
        ],
        prompt="Which of these lowers the peak?",
        right=Option(right, f"On this curve it takes {format_gib(round(saved[right]))} off the top."),
        wrong=[
            Option(
                text,
                "It raises the peak: gradients would stay through the forward."
                if size < 0
                else "It leaves the top of the curve where it is."
                if size < 1e6
                else f"It takes off only {format_gib(round(size))}.",
            )
            for text, size in saved.items()
            if text != right
        ],
        steps=[
            Step("the peak", "in optimizer.step()" if at_step else "at the start of backward"),
            *case.terms(),
        ],
        mistake="Find the phase of the peak before you choose a lever.",
        chart=stacked(
            found,
            title="One step",
            alt=f"{_ONE_STEP} Stacked by bucket; the top is {before / GIB:.1f}, "
            f"{'in the optimizer phase' if at_step else 'where forward meets backward'}.",
        ),
    )


@template("timelines.floor", _TOPIC, 2)
def floor(draw: Draw) -> Question:
    """Read bytes a parameter off the floor."""
    case = draw.case(
        PLAIN[1:],
        micro_batch=4,
        sequence_length=1024,
        precision=["amp_bf16", "bf16"],
        optimizer=["adamw_fused", "sgd_momentum"],
    )
    found = curve(case)
    floor_bytes = found.totals_bytes[0]
    value = floor_bytes / case.parameters
    e = 4 if case.job.precision == "amp_bf16" else 2
    return draw.number(
        case.job,
        setting=[
            case.size_line,
            "one later step, gradients set to None",
            f"the curve starts at {format_gib(round(floor_bytes))}",
        ],
        prompt="How many bytes a parameter lie in memory between two steps?",
        value=value,
        unit="B per parameter",
        tolerance=0.05,
        slips=[
            Slip(value + e, "counted gradients", "They are None between steps."),
            Slip(floor_bytes / GIB / (case.parameters / 1e9), "GiB for GB", "A GiB is 1.074 billion bytes."),
        ],
        steps=[
            Step("floor", f"{format_gib(round(floor_bytes))} = {round(floor_bytes):,} B"),
            Step("a parameter", f"{round(floor_bytes):,} / {case.parameters:,} = {value:.3g} B"),
            *case.terms("weights", "optimizer_state"),
        ],
        mistake="12 says fp32 weights and two moments, 8 fp32 with momentum, 6 pure bf16 AdamW, 4 bf16 "
        "with momentum.",
        chart=total_line(
            found, title="One step", alt=f"{_ONE_STEP} It starts and ends at {floor_bytes / GIB:.2f}."
        ),
    )


@template("timelines.batch-line", _TOPIC, 2)
def batch_line(draw: Draw) -> Question:
    """Read the fixed cost off a line of peaks."""
    case = draw.case(PLAIN, micro_batch=1, sequence_length=1024, precision="amp_bf16")
    sizes = (1, 2, 4, 8)
    peaks = [case.bytes(micro_batch=b) for b in sizes]
    per_sequence = (peaks[-1] - peaks[0]) / (sizes[-1] - sizes[0])
    value = peaks[0] - per_sequence
    return draw.number(
        case.job.with_(micro_batch=8),
        setting=[
            "the same job at micro batches 1, 2, 4 and 8; everything else stays",
            f"peak at 1: {format_gib(peaks[0], digits=4)}, at 8: {format_gib(peaks[-1], digits=4)}",
        ],
        prompt="How much memory does the job need that does not depend on the micro batch?",
        value=value,
        unit="GiB",
        tolerance=0.06,
        slips=[
            Slip(peaks[0], "took the first point", "One sequence's activations and logits are in it."),
            Slip(peaks[-1] - peaks[0], "took the difference", "That is what seven more sequences cost."),
        ],
        steps=[
            Step(
                "one sequence",
                f"({format_gib(peaks[-1])} − {format_gib(peaks[0])}) / 7 = {format_gib(round(per_sequence))}",
            ),
            Step(
                "the rest",
                f"{format_gib(peaks[0])} − {format_gib(round(per_sequence))} = {format_gib(round(value))}",
            ),
        ],
        mistake="Two runs are enough to predict all others: a line has a start and a slope.",
        chart=Chart(
            title="Peak by micro batch",
            x=tuple(float(b) for b in sizes),
            series=(Series("peak", None, tuple(p / GIB for p in peaks)),),
            x_labels=tuple((float(b), str(b)) for b in sizes),
            alt="A straight line of peaks in GiB: "
            + ", ".join(f"{p / GIB:.1f} at {b}" for b, p in zip(sizes, peaks, strict=True))
            + ".",
        ),
    )


@template("timelines.dies-when", _TOPIC, 2)
def dies_when(draw: Draw) -> Question:
    """Where two replayed steps cross a limit, if they do.

    The limits keep clear of what the curve leaves out, cached memory that is not in use and the CUDA context, so
    that the key is what ``trainmem estimate --capacity`` answers.
    """
    case = draw.case(
        PLAIN[1:], micro_batch=[4, 8], sequence_length=1024, precision="amp_bf16", optimizer="adamw_fused"
    )
    steps = two_steps(case.job)
    limits = {
        1: 0.95 * steps.first_peak_bytes,
        2: (steps.first_reserved_bytes + steps.second_peak_bytes) / 2,
        None: 1.06 * steps.second_reserved_bytes,
    }
    # the chain that comes here is about a job whose second step dies
    dies = draw.choice(list(limits)) if draw.pinned is None else 2
    limit = limits[dies]
    first, second = format_gib(steps.first_peak_bytes), format_gib(steps.second_peak_bytes)
    options = {
        1: Option("in step 1, in forward or backward", f"Step 1 peaks at {first}, before any moments exist."),
        2: Option(
            "in step 2, in forward or backward",
            f"Step 1 peaks at {first}, step 2 at {second}: Adam's moments now lie underneath.",
        ),
        None: Option("it does not die", f"Step 2, the higher one, peaks at {second}."),
    }
    return draw.options(
        case.job,
        setting=[
            case.size_line,
            case.batch_line,
            "AMP, fused AdamW",
            f"the device has {format_gib(round(limit))}",
        ],
        prompt="The curve is what the job would need. When does it die?",
        right=options[dies],
        wrong=[
            *(option for when, option in options.items() if when != dies),
            Option(
                "in optimizer.step() of step 1",
                "Moments appear there, but activations are gone: step 1 is higher before.",
            ),
        ],
        steps=[
            Step("the device", format_gib(round(limit))),
            Step("step 1", f"peak {first}, replayed by the tape"),
            Step("step 2", f"peak {second}"),
            *case.terms("optimizer_state"),
        ],
        mistake="Always run two steps before you believe that a job fits.",
        chart=total_line(
            steps.curve,
            title="Steps 1 and 2",
            alt=f"Allocated memory over two steps, in GiB: step 1 peaks at {first}, step 2 at {second}; "
            f"a horizontal limit at {format_gib(round(limit))}.",
            ribbons=[Ribbon(*stretch) for stretch in steps.curve.phases],
            limit=(limit, "the device"),
        ),
    )


TEMPLATES: tuple[Template, ...] = (
    name_phase,
    which_optimizer,
    which_setting,
    leak,
    micro_batches,
    act,
    floor,
    batch_line,
    dies_when,
)
