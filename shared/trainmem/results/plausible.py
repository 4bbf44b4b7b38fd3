"""What a row must satisfy before it is published, each refusal with its reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainmem.job import JobError
from trainmem.results.flops import step_flops
from trainmem.results.row import MeasuredRow
from trainmem.units import format_gib

__all__ = ["CANARY_SHARE", "HEALTHY_BF16_TFLOPS", "PEAK_TFLOPS", "refusals", "throughput_doubt"]

PEAK_TFLOPS: dict[str, float] = {
    "H200": 989.5,
    "H100": 989.5,
    "A100": 312.0,
    "GB10": 125.0,
    "L4": 121.0,
    "L40S": 362.0,
    "RTX 4090": 165.2,
    "RTX 5090": 209.5,
}
"""Dense bf16 TFLOP/s of NVIDIA's data sheets, by a word in the GPU's name: the ceiling of any training
here. GB10 is sold by its sparse fp4 rate, 1 PFLOP/s; dense bf16 is an eighth of it."""

HEALTHY_BF16_TFLOPS: dict[str, float] = {"GB10": 91.6, "H200": 780.0}
"""What a large bf16 matrix product sustains on a machine in good order, by a word in the GPU's name.
GB10: measured over 6.5 h on a public machine, against 36.5 stuck in a low-power state. H200: 769 to 798
measured."""

CANARY_SHARE = 0.8
"""Below this share of the healthy rate a machine is throttled and its times say nothing about the job."""

_PHASES = ("forward", "backward", "optimizer")


def _of_gpu(table: Mapping[str, float], gpu: str) -> float | None:
    return next((value for name, value in table.items() if name.lower() in gpu.lower()), None)


def refusals(row: MeasuredRow) -> list[str]:
    """Why the row cannot be true or cannot be published; empty for a good one."""
    return list(_refusals(row))


def _refusals(row: MeasuredRow) -> Iterator[str]:
    environment, measured = row.environment, row.measured
    if not environment.get("gpu"):
        yield "environment.gpu: null; a dry run without a GPU is not a measurement"
    for name in ("torch", "date"):
        if not environment.get(name):
            yield f"environment.{name}: missing; a row says with what and when it was measured"
    if row.outcome != "ok":
        if not row.reason:
            yield f"reason: missing; an outcome of {row.outcome} says why"
        return
    if not measured:
        yield "measured: missing; an outcome of ok has figures"
    if row.kind == "step" and measured:
        yield from _step_refusals(row)


def _step_refusals(row: MeasuredRow) -> Iterator[str]:
    measured = row.measured
    allocated, reserved = row.peak_allocated_bytes, row.peak_reserved_bytes
    if not allocated or not reserved:
        yield "peak_allocated_bytes, peak_reserved_bytes: both must be whole numbers above zero"
        return
    if reserved < allocated:
        yield (f"peak_reserved_bytes: {reserved:,} is below peak_allocated_bytes, {allocated:,}")
    requested = measured.get("peak_requested_bytes")
    if isinstance(requested, int) and requested > allocated:
        yield f"peak_requested_bytes: {requested:,} is above the allocated {allocated:,}"
    total = row.environment.get("gpu_memory_bytes")
    if isinstance(total, int) and reserved > total:
        yield f"peak_reserved_bytes: {format_gib(reserved)} is above the GPU's {format_gib(total)}"
    trainable, parameters = measured.get("trainable_parameters"), measured.get("parameters")
    if isinstance(trainable, int) and isinstance(parameters, int) and trainable > parameters:
        yield f"trainable_parameters: {trainable:,} is above parameters, {parameters:,}"
    for name in ("first_step", "steady_step"):
        yield from _phase_refusals(
            name, measured.get(name) or {}, allocated if name == "steady_step" else None
        )
    yield from _speed_refusals(row)


def _phase_refusals(name: str, step: Mapping[str, Any], peak_bytes: int | None) -> Iterator[str]:
    for phase in _PHASES:
        after, top = step.get(f"after_{phase}_bytes"), step.get(f"peak_{phase}_bytes")
        if isinstance(after, int) and isinstance(top, int) and after > top:
            yield f"{name}.after_{phase}_bytes: {after:,} is above that phase's peak, {top:,}"
        if peak_bytes is not None and isinstance(top, int) and top > peak_bytes:
            yield f"{name}.peak_{phase}_bytes: {top:,} is above peak_allocated_bytes, {peak_bytes:,}"


def _speed_refusals(row: MeasuredRow) -> Iterator[str]:
    seconds = row.step_seconds
    if seconds is None:
        return
    if seconds <= 0:
        yield f"step_seconds: {seconds} is not above zero"
        return
    if row.environment.get("capacity_text"):
        yield "throughput: given, though the machine stood in for another; such rows carry memory only"
    peak = _of_gpu(PEAK_TFLOPS, str(row.environment.get("gpu")))
    if peak is None or row.job is None:
        return
    try:
        rate = step_flops(row.job) / seconds / 1e12
    except JobError:
        return
    if rate > peak:
        yield (
            f"step_seconds: {seconds:.4g} would mean {rate:,.0f} TFLOP/s of needed arithmetic, "
            f"above this GPU's {peak:,.0f}; check whether padding was counted as tokens"
        )


def throughput_doubt(row: MeasuredRow) -> str | None:
    """Why the row's times say little although its memory figures stand; None where nothing speaks against
    them."""
    throughput = row.measured.get("throughput") or {}
    healthy = _of_gpu(HEALTHY_BF16_TFLOPS, str(row.environment.get("gpu")))
    seen = [
        value for value in (throughput.get("canary_tflops") or {}).values() if isinstance(value, int | float)
    ]
    if healthy is None or not seen or min(seen) >= CANARY_SHARE * healthy:
        return None
    return (
        f"a bf16 matrix product ran at {min(seen):.1f} TFLOP/s beside this run, below {CANARY_SHARE:.0%} "
        f"of the {healthy:.1f} of a healthy machine: throttled or in a low-power state"
    )
