"""What a row must satisfy before it is published, each refusal with its reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from trainmem.device import Device, devices
from trainmem.job import JobError
from trainmem.results.flops import step_flops
from trainmem.results.row import MeasuredRow
from trainmem.units import format_gib

__all__ = ["CANARY_SHARE", "HEALTHY_BF16_TFLOPS", "device_of_gpu", "refusals", "throughput_doubt"]

HEALTHY_BF16_TFLOPS: dict[str, float] = {"spark": 91.6, "h200": 780.0}
"""What a large bf16 matrix product sustains on a machine in good order, by the device's name.
GB10: measured over 6.5 h on a public machine, against 36.5 stuck in a low-power state. H200: 769 to 798
measured."""

CANARY_SHARE = 0.8
"""Below this share of the healthy rate a machine is throttled and its times say nothing about the job."""

_PHASES = ("forward", "backward", "optimizer")


@cache
def device_of_gpu(gpu: str) -> Device | None:
    """The device whose name or alias is in the driver's name of the GPU ("NVIDIA GB10"); the longest wins."""
    words = gpu.casefold().replace(" ", "-")
    found = [
        (len(name), device)
        for device in devices()
        for name in (device.name, *device.aliases)
        if name in words
    ]
    return max(found, key=lambda pair: pair[0])[1] if found else None


def _healthy_tflops(gpu: str) -> float | None:
    device = device_of_gpu(gpu)
    return HEALTHY_BF16_TFLOPS.get(device.name) if device is not None else None


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
    if not measured and row.kind != "preflight":
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
    device = device_of_gpu(str(row.environment.get("gpu")))
    if device is None or device.bf16_flops_per_second is None or row.job is None:
        return
    peak = device.bf16_flops_per_second / 1e12
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
    healthy = _healthy_tflops(str(row.environment.get("gpu")))
    seen = [
        value for value in (throughput.get("canary_tflops") or {}).values() if isinstance(value, int | float)
    ]
    if healthy is None or not seen or min(seen) >= CANARY_SHARE * healthy:
        return None
    return (
        f"a bf16 matrix product ran at {min(seen):.1f} TFLOP/s beside this run, below {CANARY_SHARE:.0%} "
        f"of the {healthy:.1f} of a healthy machine: throttled or in a low-power state"
    )
