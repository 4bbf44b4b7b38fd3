"""A snapshot in a few numbers and one drawing: what is kept of it when the file is gone, enough to compare with.

A summary is plain JSON inside, so that it can travel between processes and outlive the analysis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from trainmem.buckets import BUCKETS
from trainmem.snapshot.analysis import Analysis, DeviceAnalysis, buckets_of
from trainmem.snapshot.callsites import call_sites
from trainmem.snapshot.steps import StepPeak
from trainmem.snapshot.timeline import live_at
from trainmem.snapshot.view import view_of

__all__ = ["Profile", "Summary", "summary_of", "summary_of_estimate"]

ESTIMATE_SCHEMA = "trainmem.estimate/1"
_LAST_STEPS = 2
_FIRST_STEPS = (2, 3)
_MOST_SITES = 400


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """What fills the memory at one peak."""

    step: int | None
    """``None`` for the peak of the whole recording."""

    peak_bytes: int
    buckets_bytes: Mapping[str, int]
    sites_bytes: Mapping[str, int] | None
    """``None`` where lines of code are not known: a prediction has none."""

    phase_peaks_bytes: Mapping[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """One run: its peak, the peaks of some of its whole steps, and the drawing of its timeline."""

    name: str
    profiles: Sequence[Profile]
    """The peak of the recording first, then steps in order."""

    view: Mapping[str, Any] | None

    def at_step(self, step: int | None) -> Profile:
        """The profile of a step; of the whole recording when there is none of that step."""
        return next((profile for profile in self.profiles if profile.step == step), self.profiles[0])

    @property
    def steps(self) -> list[int]:
        """The steps that have a profile."""
        return [profile.step for profile in self.profiles if profile.step is not None]

    def without_sites(self) -> Summary:
        """The same for a run whose call sites mean nothing beside those of another: a prediction's operations."""
        return replace(self, profiles=[replace(profile, sites_bytes=None) for profile in self.profiles])

    def to_json(self) -> dict[str, Any]:
        """As plain containers."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Summary:
        """Back from `to_json`."""
        return cls(
            name=data["name"],
            profiles=[Profile(**profile) for profile in data["profiles"]],
            view=data["view"],
        )


def summary_of(analysis: Analysis, device: int | None = None) -> Summary:
    """The summary of a device, by default of the one with the highest peak. Raises ``ValueError`` for none."""
    found = _device(analysis, device)
    whole = [step for step in found.steps if step.is_whole]
    chosen = [step for step in whole if step.step in _FIRST_STEPS or step in whole[-_LAST_STEPS:]]
    return Summary(
        name=analysis.snapshot.source.name,
        profiles=[_profile(analysis, found, step) for step in (None, *chosen)],
        view=view_of(analysis, found),
    )


def summary_of_estimate(answer: Mapping[str, Any], name: str = "predicted") -> Summary:
    """The summary of a `trainmem.estimate/1` answer. Raises ``ValueError`` for anything else."""
    if answer.get("schema") != ESTIMATE_SCHEMA:
        raise ValueError(f"schema: {answer.get('schema')!r} is not {ESTIMATE_SCHEMA}")
    buckets, peak, phases = (
        answer.get("buckets_at_peak"),
        answer.get("peak_allocated_bytes"),
        answer.get("phases"),
    )
    if not isinstance(buckets, Mapping) or not isinstance(peak, int) or not isinstance(phases, Mapping):
        raise ValueError("buckets_at_peak, peak_allocated_bytes, phases: missing from the estimate")
    profile = Profile(
        step=None,
        peak_bytes=peak,
        buckets_bytes={bucket: int(buckets.get(bucket) or 0) for bucket in BUCKETS},
        sites_bytes=None,
        phase_peaks_bytes={
            phase: phases[f"peak_{phase}_bytes"]
            for phase in ("forward", "backward", "optimizer")
            if isinstance(phases.get(f"peak_{phase}_bytes"), int)
        },
    )
    return Summary(name=name, profiles=[profile], view=None)


def _device(analysis: Analysis, number: int | None) -> DeviceAnalysis:
    devices = [device for device in analysis.devices if device.trace.kind == "device"]
    if not devices:
        raise ValueError(f"{analysis.snapshot.source.name}: no GPU memory to compare")
    matching = [device for device in devices if device.device == number]
    return matching[0] if matching else max(devices, key=lambda device: device.peak_allocated_bytes)


def _profile(analysis: Analysis, device: DeviceAnalysis, step: StepPeak | None) -> Profile:
    instant = step.peak_instant if step else device.peak_instant
    numbers = live_at(device.replay, instant)
    bucket_of = device.attribution.bucket_of
    sites = call_sites(device.replay, analysis.facts, bucket_of, numbers)
    named = {site.site: site.bytes for site in sites[:_MOST_SITES]}
    rest = sum(site.bytes for site in sites[_MOST_SITES:])
    if rest:
        named["other call sites"] = rest
    return Profile(
        step=step.step if step else None,
        peak_bytes=device.curves.allocated[instant],
        buckets_bytes={
            str(bucket): size
            for bucket, size in buckets_of(device.replay.blocks.size, bucket_of, numbers).items()
        },
        sites_bytes=named,
        phase_peaks_bytes={str(phase): size for phase, size in step.phase_peaks_bytes.items()}
        if step
        else {},
    )
