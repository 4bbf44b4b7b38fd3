"""The answer as JSON: `trainmem.snapshot/1`."""

from __future__ import annotations

from typing import Any

from trainmem.snapshot.analysis import Analysis, DeviceAnalysis
from trainmem.snapshot.callsites import folded
from trainmem.snapshot.leaks import Leak
from trainmem.snapshot.notes import notes_of
from trainmem.snapshot.oom import OutOfMemory
from trainmem.snapshot.timeline import highest_instants, requested_at
from trainmem.snapshot.verdict import instant_in_words, verdict_of

__all__ = ["SCHEMA", "document_of"]

SCHEMA = "trainmem.snapshot/1"
_MOST_SITES = 200
_SITES_WITH_STACKS = 30
_MOST_PHASES = 20_000
_TIMELINE_POINTS = 400


def document_of(analysis: Analysis) -> dict[str, Any]:
    """The whole answer. Buckets and call sites each sum to the peak of their device."""
    source = analysis.snapshot.source
    return {
        "schema": SCHEMA,
        "source": {
            "name": source.name,
            "format": source.format,
            "gzip": source.gzip,
            "size_bytes": source.size_bytes,
        },
        "verdict": verdict_of(analysis),
        "notes": notes_of(analysis),
        "devices": [
            _device(analysis, device) for device in analysis.devices if device.trace.kind == "device"
        ],
        "host": [_device(analysis, device) for device in analysis.devices if device.trace.kind == "host"],
    }


def _device(analysis: Analysis, device: DeviceAnalysis) -> dict[str, Any]:
    fragmentation = device.fragmentation
    peak = device.peak_instant
    span = device.timetable.at(max(peak - 1, 0))
    return {
        "device": device.device,
        "events": len(device.trace),
        "peak_allocated_bytes": device.peak_allocated_bytes,
        "peak_reserved_bytes": device.peak_reserved_bytes,
        "peak_requested_bytes": device.requested_at_peak_bytes,
        "allocated_at_end_bytes": device.curves.allocated[-1],
        "reserved_at_end_bytes": device.curves.reserved[-1],
        "peak_event": peak,
        "peak_phase": span.phase if span else None,
        "peak_instant": instant_in_words(device, peak),
        "exact": device.replay.is_exact,
        "steps": device.timetable.steps,
        "timeline": _timeline(device),
        "phase_evidence": device.timetable.evidence,
        "phases": [
            {"name": span.phase, "step": span.step, "start_event": span.start, "end_event": span.end}
            for span in device.timetable.spans[:_MOST_PHASES]
        ],
        "step_peaks": [
            {
                "step": step.step,
                "peak_allocated_bytes": step.peak_bytes,
                "peak_phase": step.peak_phase,
                "phase_peaks_bytes": step.phase_peaks_bytes,
            }
            for step in device.steps[:_MOST_PHASES]
        ],
        "buckets_at_peak": device.buckets_at_peak,
        "call_sites_at_peak": _sites(analysis, device),
        "fragmentation": {
            "at_peak_bytes": fragmentation.at_peak_bytes,
            "most_bytes": fragmentation.most_bytes,
            "at_end_bytes": fragmentation.at_end_bytes,
            "idle_segments_bytes": fragmentation.idle_segments_bytes,
            "private_pool_bytes": fragmentation.private_pool_bytes,
            "held_segments": [
                {
                    "address": f"0x{segment.address:x}",
                    "size_bytes": segment.size_bytes,
                    "used_bytes": segment.used_bytes,
                    "largest_free_bytes": segment.largest_free_bytes,
                }
                for segment in fragmentation.held
            ],
        },
        "oom": _failure(analysis, device.failures[0]) if device.failures else None,
        "oom_count": len(device.failures),
        "leak": _leak(device.leak) if device.leak else None,
    }


def _timeline(device: DeviceAnalysis) -> dict[str, list[int]]:
    """The three curves where they are highest; exact at those instants."""
    instants = highest_instants(device.curves, _TIMELINE_POINTS)
    return {
        "event": instants,
        "allocated_bytes": [device.curves.allocated[at] for at in instants],
        "reserved_bytes": [device.curves.reserved[at] for at in instants],
        "requested_bytes": requested_at(device.replay, instants),
    }


def _sites(analysis: Analysis, device: DeviceAnalysis) -> list[dict[str, Any]]:
    """The largest call sites; beyond those, one line for all the rest, so that the sum stays whole."""
    sites = device.call_sites_at_peak
    rows = [
        {
            "site": site.site,
            "bytes": site.bytes,
            "blocks": site.blocks,
            "buckets_bytes": site.buckets_bytes,
            **(
                {"stack": folded(analysis.snapshot.stacks, site.stack)}
                if number < _SITES_WITH_STACKS and site.stack >= 0
                else {}
            ),
        }
        for number, site in enumerate(sites[:_MOST_SITES])
    ]
    if len(sites) > _MOST_SITES:
        rest = sites[_MOST_SITES:]
        rows.append(
            {
                "site": f"{len(rest):,} other call sites",
                "bytes": sum(site.bytes for site in rest),
                "blocks": sum(site.blocks for site in rest),
                "buckets_bytes": {},
            }
        )
    return rows


def _failure(analysis: Analysis, failure: OutOfMemory) -> dict[str, Any]:
    return {
        "event": failure.event,
        "requested_bytes": failure.requested_bytes,
        "allocated_bytes": failure.allocated_bytes,
        "reserved_bytes": failure.reserved_bytes,
        "unused_bytes": failure.unused_bytes,
        "largest_free_block_bytes": failure.largest_free_block_bytes,
        "private_pool_free_bytes": failure.private_pool_free_bytes,
        "device_free_bytes": failure.device_free_bytes,
        "would_have_fitted_bytes": failure.would_have_fitted_bytes,
        "refused_by_a_limit": failure.is_capped,
        "site": analysis.facts.sites[failure.stack],
        "stack": folded(analysis.snapshot.stacks, failure.stack),
    }


def _leak(leak: Leak) -> dict[str, Any]:
    return {
        "unit": leak.unit,
        "bytes_per_step": leak.bytes_a_step,
        "first_step": leak.first_step,
        "last_step": leak.last_step,
        "sites": [
            {
                "site": growth.site,
                "bytes_per_step": growth.bytes_a_step,
                "blocks_per_step": growth.blocks_a_step,
                "held_bytes": growth.held_bytes,
            }
            for growth in leak.sites
        ],
    }
