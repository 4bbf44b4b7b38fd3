"""The predicted step as a snapshot file, to be opened beside a real one."""

from __future__ import annotations

import re
from collections.abc import Sequence

from trainmem.allocator import AllocatorSettings, Frame, Region, write_snapshot
from trainmem.buckets import BUCKETS
from trainmem.estimate import Engine, recording_of
from trainmem.instant import short_op
from trainmem.job import TrainingJob
from trainmem.recording import Recording, kernel_loads

__all__ = ["predicted_snapshot"]

_NUMBER = re.compile(r"\.\d+(?=\.|$)")


def predicted_snapshot(
    job: TrainingJob,
    engine: Engine = "tape",
    settings: AllocatorSettings | None = None,
    *,
    recording: Recording | None = None,
) -> bytes:
    """Loading and three steps of ``job`` as ``torch.cuda.memory._dump_snapshot`` would have written them.

    An allocation's stack is its op and the module that ran it, blocks that are alike under one name, and outside
    of it the block itself; its category is its bucket. ``recording`` is the engine's, where there is one already.
    Raises `JobError` where the job cannot be replayed.
    """
    recording = recording or recording_of(job, engine)
    return write_snapshot(
        recording.events,
        stacks=[_stack(op, module) for op, module in zip(recording.op_of, recording.module_of, strict=True)],
        categories=[BUCKETS[bucket] for bucket in recording.bucket_of],
        regions=_regions(recording),
        settings=settings,
        streams=recording.streams(),
        empty_cache_before=recording.empty_cache_before,
        kernels_loaded_before=kernel_loads(recording),
    )


def _stack(op: str, module: str) -> tuple[Frame, ...]:
    """Innermost first. The files have no lines: they stand for modules, ``layers.*`` for all blocks."""
    alike = _NUMBER.sub(".*", module)
    inner = Frame(short_op(op), filename=f"{alike or 'model'}.py")
    return (inner,) if alike == module else (inner, Frame(module, filename="model.py"))


def _regions(recording: Recording) -> Sequence[Region]:
    """The phases of the steps, by the names that `torch.profiler` users give them."""
    marks = recording.marks
    ends = [mark.event for mark in marks[1:]] + [len(recording.events)]
    return [
        Region(mark.phase, mark.event, end) for mark, end in zip(marks, ends, strict=True) if mark.step > 0
    ]
