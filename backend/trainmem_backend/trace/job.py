"""A `TrainingJob`, traced for three steps."""

from __future__ import annotations

from trainmem.job import TrainingJob
from trainmem.recording import Recording
from trainmem_backend.trace.gpu import gpu_traits
from trainmem_backend.trace.libraries import load_libraries
from trainmem_backend.trace.session import tracing
from trainmem_backend.workload import build_workload

__all__ = ["trace"]


def trace(job: TrainingJob, *, steps: int = 3) -> Recording:
    """Record the job's first steps: the real model, autograd and optimizer on fake tensors."""
    load_libraries(job)
    with tracing(gpu_traits(job.device)) as session:
        recorder = session.recorder
        recorder.mark(0, "setup")
        workload = build_workload(job)
        for step in range(1, steps + 1):
            for phase, micro, run in workload.phases():
                recorder.mark(step, phase, micro)
                run()
        recording = recorder.recording
        recording.parameters = sum(p.numel() for p in workload.model.parameters())
        recording.trainable_parameters = sum(
            p.numel() for p in workload.model.parameters() if p.requires_grad
        )
        recorder.recording = Recording()
    return recording
