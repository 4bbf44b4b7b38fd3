"""What the file cannot tell, in words, most limiting first."""

from __future__ import annotations

from operator import gt, sub

from trainmem.snapshot.analysis import Analysis, DeviceAnalysis
from trainmem.snapshot.frames import is_python
from trainmem.snapshot.model import Action, Snapshot
from trainmem.units import format_bytes

__all__ = ["notes_of"]

_USUAL_LIMITS = frozenset(base * 10**power for base in (1, 2, 5) for power in range(2, 8)) | {
    1 << power for power in range(10, 24)
}
"""Values of ``max_entries`` that people choose; a trace of exactly such a length was probably cut."""


def notes_of(analysis: Analysis) -> list[str]:
    """Sentences for the reader, before any figure is shown."""
    snapshot = analysis.snapshot
    notes = [*_about_recording(snapshot)]
    several = len(analysis.devices) > 1
    for device in analysis.devices:
        for note in _about_device(analysis, device):
            notes.append(f"{name_of(device)}: {note}" if several else note)
    notes += _about_stacks(analysis)
    notes += _about_content(analysis)
    return notes


def name_of(device: DeviceAnalysis) -> str:
    """How a device is called on screens."""
    return "Pinned host memory" if device.trace.kind == "host" else f"GPU {device.device}"


def _about_recording(snapshot: Snapshot) -> list[str]:
    if any(len(trace) for trace in snapshot.traces):
        return []
    if len(snapshot.segments):
        return [
            "The file has no events, so there is no timeline and no peak: recording was not on. It shows only "
            "what was there when it was written. Call torch.cuda.memory._record_memory_history() before the "
            "model is built."
        ]
    return [
        "The file has no events and no segments: recording was not on, and nothing was allocated on a GPU in "
        "this process when it was written. Call torch.cuda.memory._record_memory_history() before the model "
        "is built, in the process that trains."
    ]


def _about_device(analysis: Analysis, device: DeviceAnalysis) -> list[str]:
    trace, replay = device.trace, device.replay
    notes: list[str] = []
    if not len(trace) and len(analysis.snapshot.segments) and analysis.snapshot.traces:
        notes.append("no events, only what was there when the snapshot was taken.")
    if replay.unmatched_frees or (replay.unfreed_before and len(trace)):
        notes.append(_about_the_beginning(analysis.snapshot, device))
    if not replay.is_exact and len(trace):
        notes.append(
            "The sizes of some blocks could not be followed exactly; they count as their requests rounded up, "
            "which is up to 1 MiB less than the allocator counts for each."
        )
    if (missing := _bytes_outside_segments(device)) > 0:
        notes.append(
            f"The file's segments do not hold its trace: at one instant {format_bytes(missing)} more are allocated "
            "than reserved, so segments are missing from it. Reserved memory and fragmentation are too low."
        )
    evidence = device.timetable.evidence
    if evidence == "lifetimes":
        notes.append(
            "Without stacks or named regions, the phases are read from the rise and fall of the curve: take "
            "them as a guess."
        )
    elif evidence == "annotations":
        notes.append(
            "Without stacks, the phases come from named regions and the shape of the curve between them."
        )
    elif evidence == "none" and len(trace):
        notes.append(
            "No training step was found: no stack, no named region and no rhythm tells the phases apart."
        )
    if len(trace) and not any(trace.time_us):
        notes.append("The events carry no times (torch 2.1 and older), so only their order is known.")
    elif any(map(gt, trace.time_us, trace.time_us[1:])):
        notes.append("Some times go backwards; the order of the events is trusted instead.")
    lost = replay.missed_frees + replay.double_frees
    if lost:
        notes.append(
            f"{lost:,} event{'s' if lost > 1 else ''} contradict{'' if lost > 1 else 's'} the others (a block "
            "allocated twice or freed twice): events were lost, or the file was edited."
        )
    if replay.pending_at_end:
        notes.append(
            f"{replay.pending_at_end:,} blocks were freed by the program but still held for another stream "
            "at the end."
        )
    return notes


def _bytes_outside_segments(device: DeviceAnalysis) -> int:
    """By how much the allocated bytes pass the reserved ones, which hold them, at the worst instant."""
    worst: int = max(map(sub, device.curves.allocated, device.curves.reserved))
    return worst


def _about_the_beginning(snapshot: Snapshot, device: DeviceAnalysis) -> str:
    """Ring overflow and a late start look alike; what tells them apart is said, what does not is not claimed."""
    replay, events = device.replay, len(device.trace)
    known = (
        f"{replay.unmatched_frees:,} blocks that were freed have no allocation in the file, and "
        f"{replay.unfreed_before:,} that stayed have none either"
    )
    overflowed = snapshot.settings.get("trace_alloc_overflowed")
    limit = snapshot.settings.get("trace_alloc_max_entries")
    if overflowed is True or (isinstance(limit, int) and limit == events):
        cause = f"the ring buffer overflowed and kept only the last {events:,} events; raise max_entries"
    elif overflowed is False:
        cause = "recording began after they were allocated"
    elif events in _USUAL_LIMITS:
        cause = (
            f"with exactly {events:,} events, the ring buffer very likely overflowed (max_entries={events}) "
            "and the earlier events are lost"
        )
    else:
        cause = "recording began after they were allocated, or its ring buffer overflowed"
    return (
        f"{known}: {cause}. They are counted from the first event on, but without the code that allocated them "
        "their buckets rest on sizes and lifetimes, and a peak before the first event is not in the file."
    )


def _about_stacks(analysis: Analysis) -> list[str]:
    snapshot, facts = analysis.snapshot, analysis.facts
    events = sum(len(trace) for trace in snapshot.traces)
    if not events:
        return []
    if not len(snapshot.stacks):
        return [
            "No stacks were recorded, so no line of code can be named and the buckets are guesses from "
            "lifetimes. Stacks are missing when recording was started with context=None or stacks off, when "
            "the blocks are older than the recording, or when a library allocated from its own threads."
        ]
    frames = snapshot.stacks.frames
    if not facts.has_python:
        unknown = sum(frame.file in ("", "??") for frame in frames)
        if unknown == len(frames):
            return [
                "All frames are unnamed ('??'): the stack unwinder failed or found no symbols, so no line of "
                "code can be named. Record with stacks='python'."
            ]
        return ["Only C++ frames were recorded: call sites are named by operator where one is recognised."]
    notes: list[str] = []
    bare = sum(trace.stack.count(-1) for trace in snapshot.traces)
    if bare:
        notes.append(
            f"{bare:,} of {events:,} events have no stack. In a recording of Python frames that is what the "
            "autograd engine's own thread looks like: backward is shown without lines of code."
        )
    native = sum(not is_python(frame) for frame in frames)
    if native > len(frames) // 2:
        notes.append(
            f"{native:,} of {len(frames):,} different frames are C++ and are folded away. stacks='python' "
            "records faster and lets the same buffer hold more steps."
        )
    return notes


def _about_content(analysis: Analysis) -> list[str]:
    snapshot = analysis.snapshot
    notes: list[str] = []
    if snapshot.traces and snapshot.trace_lists > len(snapshot.traces):
        others = snapshot.trace_lists - len(snapshot.traces)
        notes.append(
            f"{others:,} other device{'s' if others > 1 else ''} of the machine had no events in this "
            "process."
        )
    for device in analysis.devices:
        pool = device.fragmentation.private_pool_bytes
        if pool:
            notes.append(
                f"{name_of(device)}: {format_bytes(pool)} are reserved for private pools (CUDA graphs or a "
                "pool of your own), which other allocations cannot use even where they are free."
            )
    if snapshot.unknown_actions:
        names = ", ".join(snapshot.unknown_actions)
        count = sum(snapshot.unknown_actions.values())
        notes.append(f"{count:,} events of unknown kinds were skipped: {names}.")
    if any(trace.action.count(Action.OOM) for trace in snapshot.traces):
        notes.append(
            "Memory outside PyTorch's allocator (the CUDA context, NCCL, other processes) is not in the file: "
            "nvidia-smi shows more."
        )
    return notes
