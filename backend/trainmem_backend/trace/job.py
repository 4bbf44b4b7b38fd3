"""A `TrainingJob`, traced for three steps."""

from __future__ import annotations

import math
from typing import Any

from trainmem.job import JobError, TrainingJob
from trainmem.recording import Recording
from trainmem_backend.trace.gpu import gpu_traits
from trainmem_backend.trace.libraries import load_libraries, quiet_libraries
from trainmem_backend.trace.session import tracing
from trainmem_backend.workload import Workload, build_workload

__all__ = ["trace"]


def trace(job: TrainingJob, *, steps: int = 3) -> Recording:
    """Record the job's first steps: the real model, autograd and optimizer on fake tensors."""
    with quiet_libraries():
        load_libraries(job)
        return _trace(job, steps)


def _trace(job: TrainingJob, steps: int) -> Recording:
    with tracing(gpu_traits(job.device)) as session:
        recorder, bucketing = session.recorder, session.record_mode.bucketing
        recorder.mark(0, "setup")
        workload = _build(job)
        session.record_mode.attribution.name(workload.model)
        bucketing.weights(workload.model)
        parameters = list(workload.model.parameters())
        if workload.masters is not None:
            bucketing.masters(workload.masters.parameters)
            parameters += workload.masters.parameters
        for step in range(1, steps + 1):
            for phase, micro, run in workload.phases():
                recorder.mark(step, phase, micro)
                bucketing.start()
                run()
                if phase == "forward":
                    bucketing.saved()
                elif phase == "backward":
                    bucketing.gradients(parameters)
                elif phase == "optimizer":
                    bucketing.gradients(parameters)
                    bucketing.state()
            session.record_mode.attribution.forget_nodes()
        recording = recorder.recording
        counts = [(_elements(p), p.requires_grad) for p in workload.model.parameters()]
        recording.parameters = sum(count for count, _ in counts)
        recording.trainable_parameters = sum(count for count, is_trained in counts if is_trained)
        recorder.recording = Recording()
    return recording


def _build(job: TrainingJob) -> Workload:
    if job.sharding.mode == "none":
        return build_workload(job)
    if job.sharding.mode not in ("fsdp2", "ddp"):
        raise JobError(
            f"sharding.mode: {job.sharding.mode} is not torch's own; the trace replays fsdp2 and ddp"
        )
    from trainmem_backend.measure.sharded import build_sharded

    return build_sharded(job, "cuda", real=False)


def _elements(parameter: Any) -> int:
    """Elements of a parameter; those of the matrix where two are packed in a byte."""
    state = getattr(parameter, "quant_state", None)
    count: int = parameter.numel() if state is None else math.prod(state.shape)
    return count
