"""Where a row is from: the job, the phases, the live dtypes, the machine, the software and the command."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trainmem.job import TrainingJob
from trainmem.results import MeasuredRow, throughput_doubt
from trainmem_space.charts.text import escape, size

__all__ = ["provenance"]

_PHASES = ("forward", "backward", "optimizer")
_SOFTWARE = ("torch", "transformers", "peft", "bitsandbytes", "liger_kernel", "triton", "cuda", "python")


def provenance(row: MeasuredRow) -> str:
    """Everything a reader needs to measure the row again, and to see where its peak came from."""
    parts = [
        ("Outcome", f"{row.outcome}: {escape(row.reason)}" if row.reason else row.outcome),
        ("Job", _job(row.job)),
        ("Found", _found(row)),
        ("Phases", _phases(row.measured)),
        ("Live tensors", _dtypes(row.measured.get("dtypes"))),
        ("Saved for backward", _saved(row.measured.get("saved_tensors"))),
        ("Attention kernels", _counts(row.measured.get("attention_kernels"))),
        ("Time", _time(row)),
        ("Machine", _machine(row.environment)),
        ("Software", _software(row.environment)),
        ("Guard", _guard(row.data.get("guard"))),
        ("Command", _code(row.environment.get("command"))),
        (
            "Commit, date",
            escape(f"{row.environment.get('commit', 'not recorded')}, {row.environment.get('date')}"),
        ),
        ("Row", _code(row.id)),
    ]
    cells = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in parts if value)
    return f'<dl class="tm-row">{cells}</dl>'


def _code(text: Any) -> str:
    return f"<code>{escape(str(text))}</code>" if text else ""


def _job(job: TrainingJob | None) -> str:
    if job is None:
        return ""
    usual = TrainingJob(model="any").to_json()
    data = {
        name: value
        for name, value in job.to_json().items()
        if name != "config" and (value != usual[name] or name == "micro_batch")
    }
    return _code(json.dumps(data))


def _found(row: MeasuredRow) -> str:
    """What a row that is not a step has in place of phases."""
    if row.kind == "step" or not row.measured:
        return ""
    short = {
        name: value if not isinstance(value, list) or len(value) < 8 else f"{len(value)} values"
        for name, value in row.measured.items()
    }
    return _code(json.dumps(short))


def _phases(measured: Mapping[str, Any]) -> str:
    steps = [(name, measured.get(key)) for name, key in (("step 1", "first_step"), ("steady", "steady_step"))]
    rows = "".join(
        f"<tr><th>{name}</th>"
        + "".join(f"<td>{size(step.get(f'peak_{phase}_bytes'))}</td>" for phase in _PHASES)
        + f"<td>{size(step.get('after_zero_grad_bytes'))}</td></tr>"
        for name, step in steps
        if step
    )
    if not rows:
        return ""
    heads = "".join(f"<th>{phase}</th>" for phase in _PHASES)
    return f"<table><tr><th>peak in</th>{heads}<th>left after</th></tr>{rows}</table>"


def _dtypes(dtypes: Mapping[str, Any] | None) -> str:
    if not dtypes:
        return ""
    parts = []
    for name, found in dtypes.items():
        if isinstance(found, Mapping) and found:
            shown = ", ".join(f"{dtype} {size(count)}" for dtype, count in found.items())
            parts.append(f"{escape(name.replace('_', ' '))} {shown}")
    if dtypes.get("autocast"):
        parts.append(f"autocast {escape(dtypes['autocast'])}")
    return "; ".join(parts)


def _saved(saved: Mapping[str, Any] | None) -> str:
    if not saved:
        return ""
    return f"{size(saved['bytes'])} in {saved['storages']:,} storages, counted by hooks"


def _counts(kernels: Mapping[str, int] | None) -> str:
    return ", ".join(f"{escape(name)} {count:,} times" for name, count in (kernels or {}).items())


def _time(row: MeasuredRow) -> str:
    throughput = row.measured.get("throughput")
    if not throughput:
        why = row.measured.get("throughput_null_because")
        if why:
            return f"none: {escape(why)}"
        return f"{row.step_seconds:.3f} s a step, with the counters read" if row.step_seconds else ""
    canary = throughput.get("canary_tflops") or {}
    doubt = throughput_doubt(row)
    return (
        f"{throughput['step_seconds']:.3f} s a step, {throughput['real_tokens_per_second']:,.0f} tokens a second "
        f"({throughput['padded_tokens_per_second']:,.0f} with padding); a bf16 matrix product beside it "
        f"{canary.get('before')} and {canary.get('after')} TFLOP/s"
        + (f". <b>{escape(doubt)}</b>" if doubt else "")
    )


def _machine(environment: Mapping[str, Any]) -> str:
    total = environment.get("gpu_memory_bytes")
    parts = [escape(str(environment.get("gpu"))), f"{size(total)} in all" if total else ""]
    if environment.get("driver"):
        parts.append(f"driver {escape(environment['driver'])}")
    if environment.get("capacity_text"):
        parts.append(f"held to {escape(environment['capacity_text'])}: memory figures only")
    state = environment.get("gpu_state") or {}
    if state.get("sm_clock_mhz"):
        parts.append(f"{state['sm_clock_mhz']:,} MHz, {state['temperature_celsius']} °C at the start")
    parts += [
        f"{escape(name.replace('_', ' '))} not told ({escape(why)})"
        for name, why in (state.get("null_because") or {}).items()
    ]
    return ", ".join(part for part in parts if part)


def _software(environment: Mapping[str, Any]) -> str:
    parts = [f"{name} {escape(str(environment[name]))}" for name in _SOFTWARE if environment.get(name)]
    settings = environment.get("allocator_settings")
    if settings is not None:
        parts.append(f"allocator {escape(settings)}" if settings else "allocator's own defaults")
    return ", ".join(parts)


def _guard(guard: Mapping[str, Any] | None) -> str:
    if not guard or guard.get("cap_bytes") is None:
        return ""
    return f"capped at {size(guard['cap_bytes'])}: {escape(guard.get('cap_reason') or '')}"
