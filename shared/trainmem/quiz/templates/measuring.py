"""Measuring: allocated, reserved, nvidia-smi, peaks, and what a machine really has."""

from __future__ import annotations

from typing import Final

from trainmem.device import device
from trainmem.quiz.cases import LARGE, PLAIN, SMALL
from trainmem.quiz.draw import Draw, Template, template
from trainmem.quiz.question import Option, Question, Slip, Step
from trainmem.units import GB, GIB, MIB, format_gib

__all__ = ["TEMPLATES"]

_TOPIC: Final = "measuring"
_CONTEXT_MIB = (device("h200").context_bytes or 0) // MIB


@template("measuring.fragmentation", _TOPIC, 1)
def fragmentation(draw: Draw) -> Question:
    """Reserved and not allocated."""
    case = draw.case(SMALL, micro_batch=8)
    allocated, extra = draw.random.randrange(100, 400) / 10, draw.random.randrange(20, 90) / 10
    reserved = allocated + extra
    return draw.number(
        case.job,
        setting=[
            f"torch.cuda.memory_allocated(): {allocated:.1f} GiB",
            f"torch.cuda.memory_reserved(): {reserved:.1f} GiB",
        ],
        prompt="How much does the caching allocator hold that no tensor uses?",
        value=extra * GIB,
        unit="GiB",
        slips=[
            Slip(reserved * GIB, "gave reserved", "Tensors use part of what is reserved."),
            Slip(allocated * GIB, "gave allocated", "That is what tensors use."),
            Slip((reserved + allocated) * GIB, "added them", "Allocated is part of reserved."),
        ],
        steps=[Step("reserved − allocated", f"{reserved:.1f} − {allocated:.1f} = {extra:.1f} GiB")],
        mistake="Reserved is what was taken from the driver; a job dies on that, not on allocated.",
    )


@template("measuring.nvidia-smi", _TOPIC, 1)
def nvidia_smi(draw: Draw) -> Question:
    """What nvidia-smi shows."""
    case = draw.case(SMALL, micro_batch=8, device="h200")
    allocated, extra = draw.random.randrange(8000, 30000, 500), draw.random.randrange(1500, 6000, 100)
    reserved = allocated + extra
    return draw.number(
        case.job,
        setting=[
            f"allocated {allocated:,} MiB, reserved {reserved:,} MiB",
            f"CUDA context {_CONTEXT_MIB} MiB (an H200, driver 580)",
        ],
        prompt="About what does nvidia-smi show for the process?",
        value=(reserved + _CONTEXT_MIB) * MIB,
        unit="MiB",
        tolerance=0.01,
        slips=[
            Slip(allocated * MIB, "gave allocated", "The driver does not know torch's tensors."),
            Slip(
                reserved * MIB,
                "forgot the context",
                "Kernels and driver state take some hundreds of MiB too.",
            ),
            Slip(
                (allocated + _CONTEXT_MIB) * MIB,
                "started from allocated",
                "The driver sees reserved segments.",
            ),
        ],
        steps=[Step("nvidia-smi", f"{reserved:,} + {_CONTEXT_MIB} = {reserved + _CONTEXT_MIB:,} MiB")],
        mistake="It shows what the process took from the driver, freed tensors' cached segments included.",
    )


@template("measuring.counter", _TOPIC, 1)
def counter(draw: Draw) -> Question:
    """Which call answers which question."""
    case = draw.case(SMALL, micro_batch=8)
    calls = {
        "the most that tensors needed at any instant of a step": "torch.cuda.max_memory_allocated()",
        "what tensors use right now": "torch.cuda.memory_allocated()",
        "the most that was taken from the driver": "torch.cuda.max_memory_reserved()",
        "how much of the device is free for a new process": "torch.cuda.mem_get_info()",
    }
    wanted = draw.choice(list(calls))
    return draw.options(
        case.job,
        prompt=f"Which call answers: {wanted}?",
        right=Option(calls[wanted], "It is made for that."),
        wrong=[Option(call, f"It answers: {what}.") for what, call in calls.items() if what != wanted],
        steps=[Step(call, what) for what, call in calls.items()],
        mistake="Allocated or reserved, now or at most: four different numbers.",
        by_text=True,
    )


@template("measuring.oom-line", _TOPIC, 2)
def oom_line(draw: Draw) -> Question:
    """Read an out-of-memory message."""
    case = draw.case(SMALL, micro_batch=16)
    total = draw.choice([23.5, 39.5, 79.1])
    tried = draw.choice([0.5, 1.0, 2.0])
    cached = draw.random.randrange(15, 60) / 10
    free = draw.random.randrange(10, 40) / 100
    allocated = total - free - cached - 0.6
    fits = cached > tried
    return draw.options(
        case.job,
        setting=[
            f"Tried to allocate {tried:.2f} GiB. GPU 0 has a total capacity of {total:.2f} GiB "
            f"of which {free:.2f} GiB is free.",
            f"Of the allocated memory {allocated:.2f} GiB is allocated by PyTorch, "
            f"and {cached:.2f} GiB is reserved by PyTorch but unallocated.",
        ],
        prompt="What does this message say?",
        right=Option(
            "enough memory is cached, but in pieces that are too small: fragmentation"
            if fits
            else "the tensor does not fit, cached or not",
            f"{cached:.2f} GiB are cached and {tried:.2f} GiB were asked for."
            + (" Try expandable_segments:True." if fits else ""),
        ),
        wrong=[
            Option(
                "the tensor does not fit, cached or not"
                if fits
                else "enough memory is cached, but in pieces that are too small: fragmentation",
                f"Compare: {cached:.2f} GiB cached, {tried:.2f} GiB asked for.",
            ),
            Option(
                "another process holds the memory",
                "Free, allocated and cached already add up to nearly all of it.",
            ),
            Option("host memory ran out", "The message is about the GPU's capacity."),
        ],
        steps=[
            Step(
                "adds up",
                f"{allocated:.2f} + {cached:.2f} + {free:.2f} + about 0.6 (context) = {total:.2f} GiB",
            ),
            Step("asked for", f"{tried:.2f} GiB; cached and unused: {cached:.2f} GiB"),
        ],
        mistake="Read “reserved but unallocated” first: it separates fragmentation from need.",
    )


@template("measuring.sold", _TOPIC, 1)
def sold(draw: Draw) -> Question:
    """GB on the box, GiB in the counters."""
    case = draw.case(SMALL, micro_batch=8)
    gigabytes = draw.choice([16, 24, 48, 80, 96, 128, 180])
    value = gigabytes * GB
    return draw.number(
        case.job,
        setting=[f"a memory of {gigabytes} GB, taken as 10^9 bytes each"],
        prompt="How many GiB is that?",
        value=value,
        unit="GiB",
        tolerance=0.015,
        slips=[
            Slip(
                gigabytes * 1000 / 1024 * GIB,
                "divided by 1.024 once",
                "A GiB is 1.024 three times over: 1.0737 GB.",
            ),
            Slip(gigabytes * 1.0737 * GIB, "multiplied", "There are fewer GiB than GB."),
        ],
        steps=[Step("GiB", f"{gigabytes} × 10^9 / 2^30 = {value / GIB:.1f} GiB")],
        mistake="7% less. torch prints GiB; boxes print GB (and many cards have more than the box says).",
    )


@template("measuring.spark-usable", _TOPIC, 2)
def spark_usable(draw: Draw) -> Question:
    """What a Spark leaves for a job."""
    spark = device("spark")
    case = draw.case(LARGE[:2], precision="bf16", checkpointing="full", device="spark")
    shown = draw.choice([spark.visible_bytes, spark.visible_high_bytes])
    system = draw.choice([8, 10, 12]) * GIB
    value = shown - system
    return draw.number(
        case.job,
        setting=[
            "a DGX Spark, sold as 128 GB",
            f"torch shows a total of {format_gib(shown, digits=4)}",
            f"the system and its services hold {format_gib(system)}",
        ],
        prompt="How much is left for the job's processes?",
        value=value,
        unit="GiB",
        tolerance=0.02,
        slips=[
            Slip(128 * GIB - system, "GB for GiB", "128 is GB on the box; torch shows GiB."),
            Slip(128 * GB - system, "started from the box", "Start from what the machine shows."),
            Slip(shown, "forgot the system", "CPU and GPU share this memory: the system lives in it too."),
        ],
        steps=[Step("left", f"{shown / GIB:.1f} − {system / GIB:g} = {value / GIB:.1f} GiB")],
        mistake="On a machine with one memory, the operating system is part of your budget.",
    )


@template("measuring.spark-smi", _TOPIC, 2)
def spark_smi(draw: Draw) -> Question:
    """nvidia-smi on a Spark."""
    case = draw.case(LARGE[:2], precision="bf16", checkpointing="full", device="spark")
    return draw.options(
        case.job,
        setting=["a DGX Spark; nvidia-smi shows N/A for memory"],
        prompt="How do you find out how much memory a new job can get?",
        right=Option(
            "read MemAvailable from /proc/meminfo",
            "GPU allocations come from system memory, and the page cache can be given back.",
        ),
        wrong=[
            Option(
                "torch.cuda.mem_get_info() alone",
                "Its free figure is the kernel's MemFree: after a large download the page cache makes it "
                "look tiny.",
            ),
            Option(
                "nvidia-smi of another driver version",
                "The driver reports no dedicated memory because there is none.",
            ),
            Option("the cgroup's memory limit", "CUDA allocations on this machine are not counted there."),
        ],
        steps=[Step("free for CUDA", "MemFree now; MemAvailable once caches are dropped")],
        mistake="One memory: read the system's counters, and mind that its page cache counts as used.",
    )


@template("measuring.first-step", _TOPIC, 2)
def first_step(draw: Draw) -> Question:
    """When to reset the peak counter."""
    case = draw.case(PLAIN, micro_batch=8, precision="amp_bf16")
    state = case.bytes("optimizer_state")
    return draw.options(
        case.job,
        setting=[case.size_line, case.recipe_line],
        prompt="You want the peak of a typical step. Where does torch.cuda.reset_peak_memory_stats() go?",
        right=Option(
            "after at least one whole step, before the step to be measured",
            f"The first step lacks the optimizer's state ({format_gib(state)}) and pays for warm-up.",
        ),
        wrong=[
            Option(
                "at the start of the script", "Then the first step's loading and warm-up are in the peak."
            ),
            Option(
                "between forward and backward of the first step",
                "The moments are still missing in this step.",
            ),
            Option(
                "nowhere: the counter resets with each step", "It keeps the highest value since it was reset."
            ),
        ],
        steps=case.terms("optimizer_state"),
        mistake="Warm up two steps, reset, run one, read.",
    )


@template("measuring.deduce", _TOPIC, 2)
def deduce(draw: Draw) -> Question:
    """Deduce activations from counters."""
    case = draw.case(PLAIN, micro_batch=[4, 8], sequence_length=1024, precision="bf16")
    start = case.bytes("weights", "optimizer_state")
    kept = case.bytes("activations")
    after = start + kept
    return draw.number(
        case.job,
        setting=[
            case.size_line,
            f"allocated before the forward: {format_gib(start, digits=4)}, of which weights "
            f"{format_gib(case.bytes('weights'))}",
            f"allocated after the forward, the outputs deleted: {format_gib(after, digits=4)}",
            "pure bf16, gradients None",
        ],
        prompt="How much do the blocks keep for backward?",
        value=kept,
        unit="GiB",
        slips=[
            Slip(after, "gave the counter", "Weights and moments are in it too."),
            Slip(after - case.bytes("weights"), "forgot the moments", "They were there before the forward."),
            Slip(
                after - start - case.bytes("gradients"),
                "subtracted gradients",
                "There are none before backward.",
            ),
        ],
        steps=[
            Step(
                "difference",
                f"{format_gib(after, digits=4)} − {format_gib(start, digits=4)} = {format_gib(kept)}",
            )
        ],
        mistake="Differences of the counter between phases are the cheapest profiler there is.",
    )


TEMPLATES: tuple[Template, ...] = (
    fragmentation,
    nvidia_smi,
    counter,
    oom_line,
    sold,
    spark_usable,
    spark_smi,
    first_step,
    deduce,
)
