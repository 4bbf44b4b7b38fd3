"""Everything that is derived from a snapshot, device by device."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from trainmem.buckets import BUCKETS, Bucket
from trainmem.snapshot.attribute import Attribution, attribute
from trainmem.snapshot.callsites import CallSite, call_sites
from trainmem.snapshot.fragmentation import Fragmentation, fragmentation_of
from trainmem.snapshot.leaks import Leak, find_leak
from trainmem.snapshot.model import Snapshot, Trace
from trainmem.snapshot.oom import OutOfMemory, explain_failures
from trainmem.snapshot.phases import Timetable, find_phases
from trainmem.snapshot.rejected import SnapshotRejected
from trainmem.snapshot.replay import Replay, replay_device
from trainmem.snapshot.settings import settings_of
from trainmem.snapshot.sites import StackFacts, judge_stacks
from trainmem.snapshot.steps import StepPeak, step_peaks
from trainmem.snapshot.timeline import Curves, curves_of, live_at

__all__ = ["Analysis", "DeviceAnalysis", "analyse"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceAnalysis:
    """One device, or pinned host memory (``trace.kind``)."""

    trace: Trace
    replay: Replay
    curves: Curves
    timetable: Timetable
    attribution: Attribution
    steps: Sequence[StepPeak]
    buckets_at_peak: dict[Bucket, int]
    call_sites_at_peak: Sequence[CallSite]
    requested_at_peak_bytes: int
    fragmentation: Fragmentation
    failures: Sequence[OutOfMemory]
    leak: Leak | None

    @property
    def device(self) -> int:
        """Number of the device."""
        return self.trace.device

    @property
    def peak_instant(self) -> int:
        """The first instant at which the most is allocated."""
        return self.curves.peak

    @property
    def peak_allocated_bytes(self) -> int:
        """What ``torch.cuda.max_memory_allocated`` would have read."""
        return self.curves.allocated[self.curves.peak]

    @property
    def peak_reserved_bytes(self) -> int:
        """What ``torch.cuda.max_memory_reserved`` would have read."""
        return self.curves.most_reserved


@dataclass(frozen=True, kw_only=True, slots=True)
class Analysis:
    """A snapshot understood."""

    snapshot: Snapshot
    facts: StackFacts
    devices: Sequence[DeviceAnalysis]
    """In order of device number; pinned host memory, where recorded, comes last."""


def analyse(snapshot: Snapshot) -> Analysis:
    """Replay, phases, buckets, call sites, leaks and failures of every device. Raises `SnapshotRejected`."""
    with _without_collector():
        facts = judge_stacks(snapshot)
        traces = [snapshot.trace(device) for device in snapshot.devices()]
        traces += [trace for trace in snapshot.traces if trace.kind == "host"]
        try:
            devices = tuple(_analyse_device(snapshot, facts, trace) for trace in traces)
        except SnapshotRejected as rejected:
            raise SnapshotRejected(f"{snapshot.source.name}: {rejected}") from None
    return Analysis(snapshot=snapshot, facts=facts, devices=devices)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Hundreds of thousands of tuples are made here and none is garbage; looking for it takes a tenth more."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _analyse_device(snapshot: Snapshot, facts: StackFacts, trace: Trace) -> DeviceAnalysis:
    replay = replay_device(snapshot, trace)
    curves = curves_of(trace, replay)
    timetable = find_phases(trace, facts, snapshot.annotations, snapshot.strings, curves.allocated)
    attribution = attribute(trace, replay, facts, timetable, snapshot.strings)
    steps = step_peaks(timetable, curves.allocated)
    at_peak = live_at(replay, curves.peak)
    blocks, bucket_of = replay.blocks, attribution.bucket_of
    return DeviceAnalysis(
        trace=trace,
        replay=replay,
        curves=curves,
        timetable=timetable,
        attribution=attribution,
        steps=steps,
        buckets_at_peak=buckets_of(blocks.size, bucket_of, at_peak),
        call_sites_at_peak=call_sites(replay, facts, bucket_of, at_peak),
        requested_at_peak_bytes=sum(blocks.requested[number] for number in at_peak),
        fragmentation=fragmentation_of(snapshot, trace, curves, replay.segment_events),
        failures=explain_failures(snapshot, trace, replay, curves, settings_of(snapshot)),
        leak=find_leak(replay, facts, steps, curves.allocated),
    )


def buckets_of(sizes: Sequence[int], bucket_of: Sequence[int], numbers: Sequence[int]) -> dict[Bucket, int]:
    """Bytes by bucket of some blocks, in the order of `BUCKETS`; they sum to the sizes of the blocks."""
    totals = [0] * len(BUCKETS)
    for number in numbers:
        totals[bucket_of[number]] += sizes[number]
    return dict(zip(BUCKETS, totals, strict=True))
