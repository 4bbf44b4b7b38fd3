"""A training step, measured in separate passes: counters first, then hooks, then times."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from trainmem.job import TrainingJob
from trainmem_backend.measure.device import Device
from trainmem_backend.measure.live import gradient_dtypes, live_dtypes
from trainmem_backend.measure.tasks.canary import matmul_tflops
from trainmem_backend.measure.tasks.hooks import hooks_pass
from trainmem_backend.measure.trial import Trial

__all__ = ["measure_step", "memory_pass", "timing_pass"]

_STEPS = 3
_MOST_SKIPPED_STEPS = 20
"""A loss scaler begins at 65,536 and halves its scale with each step that it skips."""
_WARM_UP_STEPS = 2
_TIMED_STEPS = 5
_TIMED_SECONDS = 6.0
"""Timing stops here, once it has two steps: a step of a large model is long enough to trust."""


def measure_step(
    trial: Trial,
    device: Device,
    build: Callable[[TrainingJob], Any],
    emit: Callable[[dict[str, Any]], None] = lambda _: None,
    quiet: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """The figures of a step trial; ``emit`` gets the counters as soon as they are known, ``quiet`` is called
    before times are taken.

    A later pass that fails does not take the counters with it: its own figures are null, with the reason.
    """
    assert trial.job is not None
    workload = build(trial.job)
    device.watch(workload)
    measured = memory_pass(workload, device, steps=int(trial.options.get("steps", _STEPS)))
    emit(dict(measured))
    if "hooks" in trial.passes:
        try:
            measured.update(hooks_pass(workload, device))
        except Exception as error:
            workload.zero_grad()
            measured.update(saved_tensors=None, hooks_null_because=_said(error))
    if "timing" in trial.passes:
        try:
            quiet()
            # Real ranks must take the same number of steps, or they wait for each other for ever.
            seconds = _TIMED_SECONDS if trial.ranks == 1 else float("inf")
            measured["throughput"] = timing_pass(workload, device, longest_seconds=seconds)
        except Exception as error:
            measured.update(throughput=None, throughput_null_because=_said(error))
    else:
        why = trial.untimed_because or "this suite asks for memory only"
        measured.update(throughput=None, throughput_null_because=why)
    return measured


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def memory_pass(workload: Any, device: Device, *, steps: int = _STEPS) -> dict[str, Any]:
    """The counters at the boundaries of every phase, for step 1 and for the last step.

    Step 1 has no optimizer state before its end, so it peaks lower; from step 2 on nothing changes but
    what the allocator's cache looks like. With accumulation a phase's peak is the highest over its micro
    batches. A step that the loss scaler skips, because gradients overflowed, makes no state: it is taken again
    and does not count. Raises ``ValueError`` where it skips them all.
    """
    parameters = list(workload.model.parameters())
    measured: dict[str, Any] = {
        "parameters": sum(p.numel() for p in parameters),
        "trainable_parameters": sum(p.numel() for p in parameters if p.requires_grad),
        "weights_bytes": device.allocated_bytes(),
    }
    recorded: list[dict[str, Any]] = []
    gradients: dict[str, int] = {}
    skipped = 0
    while len(recorded) < steps:
        scale = _loss_scale(workload)
        figures: dict[str, Any] = {"start_bytes": device.allocated_bytes()}
        reserved = requested = 0
        began = time.perf_counter()
        for phase, _micro, run in workload.phases():
            if phase == "optimizer":
                gradients = gradient_dtypes(workload)
            device.reset_peak()
            run()
            device.synchronize()
            top = f"peak_{phase}_bytes"
            figures[f"after_{phase}_bytes"] = device.allocated_bytes()
            figures[top] = max(figures.get(top, 0), device.peak_allocated_bytes())
            reserved = max(reserved, device.peak_reserved_bytes())
            requested = max(requested, device.peak_requested_bytes())
        figures.pop("peak_zero_grad_bytes", None)
        figures["seconds"] = round(time.perf_counter() - began, 4)
        figures["peak_bytes"] = max(value for name, value in figures.items() if name.startswith("peak_"))
        figures["peak_reserved_bytes"] = reserved
        figures["peak_requested_bytes"] = requested
        if _loss_scale(workload) >= scale:
            recorded.append(figures)
            continue
        skipped += 1
        if skipped == _MOST_SKIPPED_STEPS:
            raise ValueError(f"precision: the loss scaler skipped {skipped} steps; gradients are not finite")
    steady = recorded[-1]
    measured["first_step"] = recorded[0]
    measured["steady_step"] = steady
    measured["steps"] = steps
    if skipped:
        measured["skipped_steps"] = skipped
    measured["peak_allocated_bytes"] = steady["peak_bytes"]
    measured["peak_reserved_bytes"] = max(step["peak_reserved_bytes"] for step in recorded)
    measured["peak_requested_bytes"] = steady["peak_requested_bytes"]
    measured["allocator_retries"] = device.retries()
    measured["dtypes"] = live_dtypes(workload, gradients)
    return measured


def _loss_scale(workload: Any) -> float:
    return float(workload.scaler.get_scale()) if workload.scaler is not None else 1.0


def timing_pass(workload: Any, device: Device, *, longest_seconds: float = _TIMED_SECONDS) -> dict[str, Any]:
    """Seconds a step with nothing read inside it, and a matrix product before and after as a canary."""
    before = matmul_tflops(device)
    for _ in range(_WARM_UP_STEPS):
        _step(workload)
    device.synchronize()
    seconds: list[float] = []
    while len(seconds) < _TIMED_STEPS and (len(seconds) < 2 or sum(seconds) < longest_seconds):
        began = time.perf_counter()
        _step(workload)
        device.synchronize()
        seconds.append(time.perf_counter() - began)
    after = matmul_tflops(device)
    step_seconds = statistics.median(seconds)
    real, padded = _tokens(workload)
    return {
        "step_seconds": round(step_seconds, 5),
        "steps_per_second": round(1 / step_seconds, 4),
        "all_step_seconds": [round(value, 5) for value in seconds],
        "real_tokens_per_step": real,
        "padded_tokens_per_step": padded,
        "real_tokens_per_second": round(real / step_seconds, 1),
        "padded_tokens_per_second": round(padded / step_seconds, 1),
        "canary_tflops": {"before": before, "after": after},
    }


def _step(workload: Any) -> None:
    for _phase, _micro, run in workload.phases():
        run()


def _tokens(workload: Any) -> tuple[int, int]:
    ids = workload.batch["input_ids"]
    mask = workload.batch.get("attention_mask")
    padded = ids.numel() * workload.job.accumulation
    real = int(mask.sum()) * workload.job.accumulation if torch.is_tensor(mask) else padded
    return real, padded
