"""Fill in the generated parts of the README and of docs/levers.md; with --check, only say whether they are up to date.

A generated part stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from tools.lever_texts import LEVER_TEXTS
from trainmem.buckets import BUCKET_MEANINGS
from trainmem.device import devices
from trainmem.estimate import estimate
from trainmem.job import TrainingJob
from trainmem.model import UnknownFamily, resolve
from trainmem.results import predictions, published_rows
from trainmem.results.row import MeasuredRow
from trainmem.units import GIB, format_gb
from trainmem.whiteboard import whiteboard

ROOT = Path(__file__).resolve().parents[1]
FILES = ("README.md", "docs/levers.md")
SCRIPT_RUNS = ROOT / "tests" / "data" / "scripts" / "measured.json"
_PART = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

SHOWN = (
    ("gpt2-774m", 8, 1024, "amp_bf16", "adamw", "none", False),
    ("gpt2-774m", 8, 1024, "amp_bf16", "adamw", "full", False),
    ("gpt2-774m", 8, 1024, "amp_bf16", "adamw8bit", "full", False),
    ("llama3.2-1b", 8, 2048, "amp_bf16", "adamw", "none", False),
    ("llama3.2-1b", 4, 2048, "amp_bf16", "adamw", "full", False),
    ("qwen3-1.7b", 2, 2048, "bf16", "adamw", "none", False),
    ("phi3-mini", 1, 2048, "amp_bf16", "adamw", "full", False),
    ("mistral-7b", 1, 4096, "bf16", "adafactor", "full", False),
    ("llama2-7b", 1, 2048, "bf16", "adamw", "full", False),
    ("llama3.1-8b", 1, 2048, "bf16", "adamw", "full", False),
    ("llama3.1-8b", 1, 2048, "bf16", "adamw", "full", True),
    ("bert-large", 16, 512, "amp_bf16", "adamw", "none", False),
)
"""The measured steps that the README shows: model, batch, length, precision, optimizer, checkpointing, QLoRA."""


def _step_rows() -> list[MeasuredRow]:
    return [
        row
        for row in published_rows()
        if row.kind == "step" and row.outcome == "ok" and row.job is not None and row.peak_allocated_bytes
    ]


def _matches(job: TrainingJob, shown: tuple[object, ...]) -> bool:
    qlora = job.base_quantization == "nf4"
    facts = (
        job.model, job.micro_batch, job.sequence_length, job.precision, job.optimizer, job.checkpointing, qlora
    )  # fmt: skip
    plain = job.attention == "sdpa" and job.loss == "standard" and job.accumulation == 1
    return facts == shown and plain and (qlora or job.lora is None)


def accuracy_table() -> str:
    """Predicted against measured, for a dozen steps of an H200, and the figures over all rows."""
    rows = _step_rows()
    lines = [
        "| step on one H200 | whiteboard | tape | measured | error of the tape |",
        "|---|---:|---:|---:|---:|",
    ]
    for shown in SHOWN:
        row = next((r for r in rows if r.job is not None and _matches(r.job, shown)), None)
        if row is None or row.job is None:
            continue
        job, truth = row.job, row.peak_allocated_bytes or 0
        tape = estimate(job).peak_allocated_bytes
        board = whiteboard(job, resolve(job).architecture).peak_bytes
        kind = "QLoRA r=16" if job.lora else f"{job.precision} {job.optimizer}"
        checkpointed = ", checkpointing" if job.checkpointing == "full" else ""
        lines.append(
            f"| {job.model}, {job.micro_batch} x {job.sequence_length:,}, {kind}{checkpointed} "
            f"| {board / GIB:.2f} | {tape / GIB:.2f} | {truth / GIB:.2f} GiB | {100 * (tape / truth - 1):+.3f}% |"
        )
    lines += ["", _summary(rows)]
    return "\n".join(lines)


def _summary(rows: Iterable[MeasuredRow]) -> str:
    allocated: list[float] = []
    reserved: list[float] = []
    drawn: list[tuple[float, float]] = []
    predicted_right: dict[str, list[bool]] = {}
    traced: list[float] = []
    traced_reserved: list[float] = []
    kinds: set[str] = set()
    for row in rows:
        if row.job is None:
            continue
        error = predictions().error(row.id, "trace")
        if error is not None:
            traced.append(abs(error))
            held = predictions().of_row[row.id]["trace"].peak_reserved_bytes
            if held is not None and row.peak_reserved_bytes:
                traced_reserved.append(abs(held / row.peak_reserved_bytes - 1))
            kinds.add(str((row.job.config or {}).get("model_type")))
        try:
            answer = estimate(row.job)
        except UnknownFamily:
            continue
        if answer.engine != "tape":
            continue
        allocated.append(abs(answer.peak_allocated_bytes / (row.peak_allocated_bytes or 1) - 1))
        if answer.peak_reserved_bytes is not None and row.peak_reserved_bytes:
            reserved.append(abs(answer.peak_reserved_bytes / row.peak_reserved_bytes - 1))
            if row.suite in ("random", "random-wide"):
                drawn.append((allocated[-1], reserved[-1]))
                predicted = (row.data.get("guard") or {}).get("predicted_peak_bytes")
                predicted_right.setdefault(row.suite, []).append(predicted == row.peak_allocated_bytes)
    return (
        f"Over the {len(allocated)} published steps of its families the tape's allocated peak has a median error of "
        f"{100 * statistics.median(allocated):.3f}%, the 95th percentile is {100 * _percentile(allocated):.2f}% and "
        f"the worst {100 * max(allocated):.2f}%; reserved memory: median {100 * statistics.median(reserved):.2f}%, "
        f"95th percentile {100 * _percentile(reserved):.1f}%, worst {100 * max(reserved):.1f}%. "
        f"The trace, over {len(traced)} steps of {len(kinds)} architectures: median "
        f"{100 * statistics.median(traced):.3f}%, 95th percentile {100 * _percentile(traced):.2f}%, worst "
        f"{100 * max(traced):.2f}%; reserved memory: median {100 * statistics.median(traced_reserved):.2f}%, 95th "
        f"percentile {100 * _percentile(traced_reserved):.1f}%, worst {100 * max(traced_reserved):.1f}%. "
        f"No constant is fitted to these rows."
        f"\n\n{_of_drawn(drawn, predicted_right)}"
        f"\n\n{_of_scripts()}"
    )


def _of_drawn(errors: list[tuple[float, float]], predicted_right: dict[str, list[bool]]) -> str:
    """What came of the suites of random jobs, then and now; the harness wrote its prediction into each row."""
    allocated, reserved = zip(*errors, strict=True)
    suites = " and ".join(f"`{suite}`" for suite in predicted_right)
    right = " and ".join(f"{sum(right)} of {len(right)}" for right in predicted_right.values())
    return (
        f"Nobody chose the {len(errors)} jobs of the suites {suites}: models of every family, shapes and levers are "
        "drawn by number. Predicted before they were measured, allocated memory came out right to the byte in "
        f"{right}. What the misses showed is in the code now, which makes it {allocated.count(0)} of all (worst "
        f"{100 * max(allocated):.2f}%); reserved memory in {reserved.count(0)} (worst {100 * max(reserved):.1f}%). "
        "Wherever a miss was recorded again, every allocation and free was the tape's: what is left is where the "
        "driver puts segments, and steps that a loss scaler skips."
    )


def _of_scripts() -> str:
    """What whole scripts took, and what the trace says, which a test holds to be so."""
    runs = json.loads(SCRIPT_RUNS.read_text(encoding="utf-8"))["runs"]
    allocated, reserved = (
        [abs(run[f"traced_{kind}_bytes"] / run[f"peak_{kind}_bytes"] - 1) for run in runs]
        for kind in ("allocated", "reserved")
    )
    scripts, models = ({run[name] for run in runs} for name in ("script", "model"))
    return (
        f"{len(scripts)} whole scripts (Trainer, accelerate, LoRA, fp16 with a scaler, preferences by hand; DDP and "
        f"FSDP2 by hand, accelerate's and the Trainer's) were run on an H200, {sum('ranks' in run for run in runs)} "
        f"of the {len(runs)} runs on two, with {len(models)} models, and traced with no GPU: "
        f"allocated memory is within {100 * max(allocated):.2f}% and right to the byte in "
        f"{allocated.count(0)}, reserved memory within {100 * max(reserved):.2f}% and to the byte in "
        f"{reserved.count(0)} (`TRAINMEM_SCRIPTS=all pytest tests/backend/test_scripts_measured.py`)."
    )


def _percentile(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.95 * len(values)))]


def lever_table() -> str:
    """Every lever, every value, what it does to memory."""
    lines = ["| lever | value | what it does to memory |", "|---|---|---|"]
    for lever, values in LEVER_TEXTS.items():
        for value, text in values.items():
            lines.append(f"| `{lever}` | `{value}` | {text} |")
    return "\n".join(lines)


def bucket_table() -> str:
    """The ten buckets."""
    lines = ["| bucket | what is in it |", "|---|---|"]
    lines += [f"| `{bucket}` | {meaning} |" for bucket, meaning in BUCKET_MEANINGS.items()]
    return "\n".join(lines)


def device_table() -> str:
    """Every device with its three sizes."""
    lines = ["| device | sold as | shows | a job can have |", "|---|---:|---:|---:|"]
    for spec in devices():
        usable = f"{spec.usable_bytes / GIB:.1f} GiB" if spec.cuda else "no CUDA"
        lines.append(
            f"| `{spec.name}` {spec.title} | {format_gb(spec.marketed_bytes)} "
            f"| {spec.visible_bytes / GIB:.1f} GiB | {usable} |"
        )
    return "\n".join(lines)


PARTS: dict[str, Callable[[], str]] = {
    "accuracy": accuracy_table,
    "levers": lever_table,
    "buckets": bucket_table,
    "devices": device_table,
}


def filled(text: str) -> str:
    """``text`` with its generated parts made anew."""
    return _PART.sub(lambda part: f"{part[1]}{PARTS[part[2]]()}\n{part[3]}", text)


def main(argv: list[str]) -> int:
    """Write the files, or check them."""
    stale = []
    for name in FILES:
        path = ROOT / name
        before = path.read_text(encoding="utf-8")
        after = filled(before)
        if before == after:
            continue
        stale.append(name)
        if "--check" not in argv:
            path.write_text(after, encoding="utf-8")
    if stale and "--check" in argv:
        sys.stdout.write(f"out of date: {', '.join(stale)}; run `python -m tools.readme`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
