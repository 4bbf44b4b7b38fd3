"""The answer in two or three sentences: when the peak was, what it was made of, what to do."""

from __future__ import annotations

from collections.abc import Mapping

from trainmem.allocator import TURN_ON_EXPANDABLE_SEGMENTS
from trainmem.buckets import BUCKETS, Bucket
from trainmem.snapshot.analysis import Analysis, DeviceAnalysis
from trainmem.snapshot.notes import name_of
from trainmem.snapshot.oom import OutOfMemory
from trainmem.units import MIB, format_bytes, format_gib

__all__ = ["instant_in_words", "verdict_of"]

_EDGE = 0.12
"""An instant within this share of a phase's events from its start or end is said to be there."""

_PHASE_WORDS = {
    "setup": "the setup before the first step",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "the optimizer step",
    "zero_grad": "zero_grad",
}
_BUCKET_WORDS: dict[Bucket, str] = {bucket: bucket.replace("_", " ") for bucket in BUCKETS}
_REMEDIES: dict[Bucket, str] = {
    "activations": "activation checkpointing trades them for about a quarter more time, "
    "and a smaller micro batch shrinks them in proportion",
    "logits": "a fused linear cross-entropy never writes them out in full, and a smaller micro batch shrinks them",
    "optimizer_state": "an 8-bit optimizer keeps a quarter of it, and sharding divides it among the devices",
    "gradients": "zero_grad(set_to_none=True) right after the step frees them before the next forward, "
    "and sharding divides them",
    "weights": "a smaller type, LoRA over a quantised base, or sharding are what shrinks them",
    "master_weights": "an optimizer with stochastic rounding or Kahan summation does without them",
    "cast_cache": "weights kept in 16 bits from the start need no casts",
    "temporaries": "if they are the optimizer's, fused=True or foreach=False does without them",
    "communication": "smaller buckets, or resharding after forward, shrink them",
    "workspace": "CUBLAS_WORKSPACE_CONFIG sets their size",
}
_FRAGMENTED = 0.1
_WORTH_A_WORD_BYTES = 128 * MIB


def verdict_of(analysis: Analysis) -> list[str]:
    """Sentences, the most important first."""
    sentences: list[str] = []
    active = [device for device in analysis.devices if device.peak_allocated_bytes > 0]
    for device in active[:8]:
        lead = f"{name_of(device)}: " if len(active) > 1 else ""
        sentences += [lead + sentence for sentence in _about(analysis, device)]
    if not active:
        sentences.append("Nothing was allocated.")
    elif len(active) > 8:
        sentences.append(f"{len(active) - 8} more devices are not described here.")
    return sentences


def instant_in_words(device: DeviceAnalysis, instant: int) -> str:
    """For example "at the start of backward in step 2 of 3"."""
    span = device.timetable.at(max(instant - 1, 0))
    if not len(device.trace):
        return "when the snapshot was taken"
    if span is None:
        return f"after event {instant:,} of {len(device.trace):,}"
    if span.phase == "setup":
        return f"during {_PHASE_WORDS['setup']}"
    place = (instant - span.start) / max(span.end - span.start, 1)
    edge = "at the start of" if place <= _EDGE else "at the end of" if place >= 1 - _EDGE else "during"
    return f"{edge} {_PHASE_WORDS[span.phase]} in step {span.step} of {device.timetable.steps}"


def _about(analysis: Analysis, device: DeviceAnalysis) -> list[str]:
    sentences = [_about_failure(device, failure) for failure in device.failures[:1]]
    peak = device.peak_allocated_bytes
    at = instant_in_words(device, device.peak_instant)
    if len(device.trace):
        sentences.append(
            f"The peak is {format_gib(peak)} allocated ({format_gib(device.peak_reserved_bytes)} reserved), "
            f"{at}: {shares(device.buckets_at_peak, peak)}."
        )
    else:
        sentences.append(
            f"{format_gib(peak)} were allocated ({format_gib(device.peak_reserved_bytes)} reserved) {at}."
        )
    if device.leak:
        sentences.append(_about_leak(device))
    fragmentation = device.fragmentation.at_peak_bytes
    if (
        fragmentation > max(_FRAGMENTED * device.peak_reserved_bytes, _WORTH_A_WORD_BYTES)
        and not device.failures
    ):
        sentences.append(
            f"{format_gib(fragmentation)} of what was reserved at the peak was not allocated; "
            f"{TURN_ON_EXPANDABLE_SEGMENTS} usually wins most of that back."
        )
    if analysis.facts.has_python and device.timetable.spans:
        sentences.append(_advice(device.buckets_at_peak))
    return sentences


def shares(buckets: Mapping[Bucket, int], total: int, *, most: int = 4) -> str:
    """For example "activations 1.20 GiB (40%), optimizer state 0.93 GiB (31%) and 0.86 GiB of other things"."""
    ranked = sorted(((size, bucket) for bucket, size in buckets.items() if size > 0), reverse=True)
    named = [
        f"{_BUCKET_WORDS[bucket]} {format_gib(size)} ({size / total:.0%})"
        for size, bucket in ranked[:most]
        if size >= 0.01 * total
    ]
    rest = total - sum(size for size, _ in ranked[: len(named)])
    if rest >= 0.01 * total:
        named.append(f"{format_gib(rest)} of other things")
    return " and ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named)


def _advice(buckets: Mapping[Bucket, int]) -> str:
    largest = max(BUCKETS, key=lambda bucket: buckets.get(bucket, 0))
    words = _BUCKET_WORDS[largest]
    return f"The largest part is {words}: {_REMEDIES[largest]}."


def _about_failure(device: DeviceAnalysis, failure: OutOfMemory) -> str:
    span = device.timetable.at(failure.event)
    where = f" in {_PHASE_WORDS[span.phase]} of step {span.step}" if span and span.step else ""
    sentence = (
        f"Memory ran out{where}: {format_bytes(failure.requested_bytes)} were asked for with "
        f"{format_gib(failure.allocated_bytes)} allocated and {format_gib(failure.reserved_bytes)} reserved"
    )
    if failure.is_capped:
        sentence += (
            f". The device still had {format_gib(failure.device_free_bytes)} free, so a limit of the process "
            "refused it (set_per_process_memory_fraction or the like)"
        )
    else:
        sentence += f" and {format_bytes(failure.device_free_bytes)} free on the device"
    if failure.largest_free_block_bytes is not None:
        sentence += (
            f". Of the reserved memory {format_bytes(failure.unused_bytes)} were free, the largest piece "
            f"{format_bytes(failure.largest_free_block_bytes)}: a request of up to "
            f"{format_bytes(failure.would_have_fitted_bytes)} would have fitted"
        )
    if failure.unused_bytes >= failure.requested_bytes:
        sentence += ". Enough was free in all but not in one piece: expandable_segments:True is made for that"
    return sentence + "."


def _about_leak(device: DeviceAnalysis) -> str:
    leak = device.leak
    assert leak is not None
    first = leak.sites[0]
    share = f", most of it ({format_bytes(first.bytes_a_step)})" if len(leak.sites) > 1 else ","
    when = (
        f"a step from step {leak.first_step} to {leak.last_step}"
        if leak.unit == "step"
        else "in each tenth of the recording"
    )
    return (
        f"Memory grows by {format_bytes(leak.bytes_a_step)} {when}{share} allocated at {first.site}: something "
        "keeps these tensors (a list of losses that were not detached, a cache, a graph that is retained)."
    )
