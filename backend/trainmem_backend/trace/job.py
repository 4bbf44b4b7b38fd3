"""A `TrainingJob`, traced for three steps."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata

from trainmem.job import JobError, TrainingJob
from trainmem.recording import Phase, Recording
from trainmem.trace_command import untraceable
from trainmem_backend.measure.build import build
from trainmem_backend.trace.bitsandbytes import elements
from trainmem_backend.trace.errors import TraceError, what_failed
from trainmem_backend.trace.gpu import gpu_traits
from trainmem_backend.trace.libraries import load_libraries, one_order, quiet_libraries
from trainmem_backend.trace.repetition import append_copy, begin
from trainmem_backend.trace.session import TraceSession, tracing
from trainmem_backend.workload import Workload

__all__ = ["Progress", "trace"]

Progress = Callable[[float], None]
"""Called now and then with the share of the work that is done."""

_DISTINCT_STEPS = 2
_DISTINCT_MICRO_BATCHES = 3
"""The first step makes optimizer state and the second is like all later ones; of micro batches the first makes
gradients, the second adds to them, and the third is like all later ones. What repeats is traced once."""

_Part = tuple[Phase, int, Callable[[], None]]


def trace(
    job: TrainingJob, *, steps: int = 3, repeat: bool = True, progress: Progress | None = None
) -> Recording:
    """Record the job's first steps: the real model, autograd and optimizer on fake tensors.

    ``repeat`` False runs every step and micro batch instead of writing those that repeat down again. Raises
    `JobError` for a job that cannot be, and `TraceError` where the model's own code fails.
    """
    with quiet_libraries():
        load_libraries(job)
        try:
            try:
                return _traced(job, steps, repeat, progress or _silent)
            except _DoesNotRepeatError:
                return _traced(job, steps, False, progress or _silent)
        except (JobError, TraceError):
            raise
        except Exception as error:
            raise TraceError(what_failed(error)) from error


def _traced(job: TrainingJob, steps: int, repeat: bool, progress: Progress) -> Recording:
    with tracing(gpu_traits(job.device)) as session:
        job_trace = _JobTrace(job, session, repeat=repeat, progress=progress)
        with one_order(job_trace.workload.model):
            return job_trace.run(steps)


class _DoesNotRepeatError(Exception):
    """A micro batch frees what it did not make."""


def _silent(share: float) -> None:
    return None


class _JobTrace:
    """One job's trace, from building the model on."""

    def __init__(self, job: TrainingJob, session: TraceSession, *, repeat: bool, progress: Progress) -> None:
        self.job, self.repeat, self.progress = job, repeat, progress
        self.recorder = session.recorder
        self.bucketing, self.attribution = session.record_mode.bucketing, session.record_mode.attribution
        self.recorder.mark(0, "setup")
        self.workload = _build(job)
        self._say_if_not_as_asked()
        self.parameters = list(self.workload.model.parameters())
        self.attribution.name(self.workload.model)
        self.bucketing.weights(self.workload.model)
        if self.workload.masters is not None:
            self.bucketing.masters(self.workload.masters.parameters)
            self.parameters += self.workload.masters.parameters
        self._done = self._total = 0

    def _say_if_not_as_asked(self) -> None:
        """Transformers has no fused attention for some models, in newer releases for more of them."""
        config = self.workload.model.config
        if self.job.attention == "sdpa" and getattr(config, "_attn_implementation", "sdpa") == "eager":
            self.recorder.note(
                f"attention: transformers {metadata.version('transformers')} has no sdpa for {config.model_type}, "
                "so that it runs with eager attention"
            )

    def run(self, steps: int) -> Recording:
        """Trace the steps and hand the recording over."""
        recording = self.recorder.recording
        distinct = min(steps, _DISTINCT_STEPS) if self.repeat else steps
        self._total = distinct * len(self._parts())
        starts = []
        for step in range(1, steps + 1):
            starts.append(begin(recording))
            last_repeats = self.repeat and step > _DISTINCT_STEPS
            if not (last_repeats and append_copy(recording, starts[-2], starts[-3], step=step)):
                self._step(step)
        counts = [(elements(p), p.requires_grad) for p in self.workload.model.parameters()]
        recording.parameters = sum(count for count, _ in counts)
        recording.trainable_parameters = sum(count for count, is_trained in counts if is_trained)
        if self.recorder.managed_bytes:
            recording.notes.append(
                f"{self.recorder.managed_bytes:,} bytes of optimizer state are paged: the driver moves them between "
                "host and GPU, outside PyTorch's counters (on a machine whose memory is one pool, in that pool)"
            )
        # What dies after this is the trace's own end, not the program's.
        self.recorder.recording = Recording()
        return recording

    def _parts(self) -> list[_Part]:
        parts = list(self.workload.phases())
        if not self.repeat:
            return parts
        return [part for part in parts if part[1] < _DISTINCT_MICRO_BATCHES]

    def _step(self, step: int) -> None:
        recording = self.recorder.recording
        starts = []
        for phase, micro, run in self.workload.phases():
            if phase == "forward":
                starts.append(begin(recording))
            repeats = self.repeat and micro >= _DISTINCT_MICRO_BATCHES
            if repeats and phase == "forward":
                source, before = starts[_DISTINCT_MICRO_BATCHES - 1], starts[_DISTINCT_MICRO_BATCHES - 2]
                until = starts[_DISTINCT_MICRO_BATCHES] if micro > _DISTINCT_MICRO_BATCHES else starts[micro]
                shift = micro - _DISTINCT_MICRO_BATCHES + 1
                copied = append_copy(recording, source, before, until=until, step=step, micro_shift=shift)
                if not copied:
                    raise _DoesNotRepeatError
            elif not repeats:
                self._run(step, phase, micro, run)
        self.attribution.forget_nodes()

    def _run(self, step: int, phase: Phase, micro: int, run: Callable[[], None]) -> None:
        self.recorder.mark(step, phase, micro)
        self.bucketing.start()
        run()
        if phase == "forward":
            self.bucketing.saved()
        elif phase in ("backward", "optimizer"):
            self.bucketing.gradients(self.parameters)
        if phase == "optimizer":
            self.bucketing.state()
        self._done += 1
        self.progress(min(1.0, self._done / max(1, self._total)))


def _build(job: TrainingJob) -> Workload:
    reason = untraceable(job)
    if reason is not None:
        raise JobError(reason)
    return build(job, "cuda")
