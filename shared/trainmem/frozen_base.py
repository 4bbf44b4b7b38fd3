"""A frozen base's dtype is a choice that is easily overlooked: what it is held in here, and what else is usual."""

from __future__ import annotations

from trainmem.estimate import Engine, estimate
from trainmem.job import JobError, Precision, TrainingJob
from trainmem.model import resolve
from trainmem.units import format_gib
from trainmem.whiteboard.adapters import frozen_base
from trainmem.whiteboard.sharding import shares
from trainmem.whiteboard.states import RECIPES

__all__ = ["UNPACKED_IN_FP32", "frozen_base_note"]

UNPACKED_IN_FP32 = "PEFT's prepare_model_for_kbit_training puts them into fp32"
"""Source: peft/utils/other.py, which casts every fp16 and bf16 parameter but the packed ones."""


def frozen_base_note(job: TrainingJob, engine: Engine = "tape") -> str | None:
    """What the frozen base of ``job`` is held in, and the peak if it were loaded as others do; None without one.

    A plain base under fp32 or autocast: most load it in bf16. A packed one in bf16: `UNPACKED_IN_FP32`.
    """
    if job.lora is None:
        return None
    size = RECIPES[job.precision].weight_bytes
    try:
        base = frozen_base(resolve(job).architecture, job.base_quantization, size)
    except JobError:  # a model that only the trace knows
        return None
    if not base.packed_parameters and job.base_quantization == "none" and size == 4:
        held = format_gib(base.plain_bytes // shares(job.sharding).weights)
        copied = ", with 16-bit copies beside it" if RECIPES[job.precision].cast_bytes else ""
        usual = f"most load it in bf16 (precision bf16){_peak(job, 'bf16', engine)}"
        return f"The frozen base is held in fp32 here, {held}{copied}; {usual}."
    if base.packed_parameters and size == 2:
        return (
            f"What is not packed, embeddings and head, is held in bf16 here; {UNPACKED_IN_FP32} (precision amp_bf16)"
            f"{_peak(job, 'amp_bf16', engine)}."
        )
    return None


def _peak(job: TrainingJob, precision: Precision, engine: Engine) -> str:
    """To follow a precision: the peak that it makes, from the same kind of engine; empty where there is none."""
    wanted: Engine = "whiteboard" if engine == "whiteboard" else "tape"
    found = estimate(job.with_(precision=precision), wanted, "fast")
    return f": {format_gib(found.peak_allocated_bytes)} at the peak" if found.engine == wanted else ""
