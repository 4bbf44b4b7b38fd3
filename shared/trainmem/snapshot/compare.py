"""Two snapshots, or a prediction and a snapshot, side by side at the peak of the same step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainmem.buckets import BUCKETS, Bucket
from trainmem.snapshot.analysis import Analysis, DeviceAnalysis, buckets_of
from trainmem.snapshot.callsites import call_sites
from trainmem.snapshot.steps import StepPeak
from trainmem.snapshot.timeline import live_at
from trainmem.units import format_gib

__all__ = ["Comparison", "Difference", "Profile", "compare", "profile_of_estimate", "profiles_of"]

_MOST_SITES = 60
ESTIMATE_SCHEMA = "trainmem.estimate/1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """What fills the memory at one peak."""

    name: str
    step: int | None
    peak_bytes: int
    phase: str | None
    buckets_bytes: Mapping[Bucket, int]
    sites_bytes: Mapping[str, int] | None
    """``None`` where lines of code are not known: a prediction has none."""

    phase_peaks_bytes: Mapping[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One line of a comparison."""

    name: str
    before_bytes: int
    after_bytes: int

    @property
    def change_bytes(self) -> int:
        """After minus before."""
        return self.after_bytes - self.before_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Before and after. The lines of buckets, and of call sites, sum to the two peaks."""

    before: Profile
    after: Profile
    buckets: Sequence[Difference]
    sites: Sequence[Difference]
    phases: Sequence[Difference]

    @property
    def verdict(self) -> str:
        """The change in one or two sentences."""
        change = self.after.peak_bytes - self.before.peak_bytes
        share = f" ({change / self.before.peak_bytes:+.1%})" if self.before.peak_bytes else ""
        where = f" in step {self.before.step}" if self.before.step and self.after.step else ""
        moved = [
            f"{row.name.replace('_', ' ')} {_signed(row.change_bytes)}"
            for row in self.buckets
            if abs(row.change_bytes) >= max(0.005 * self.before.peak_bytes, 1)
        ][:4]
        return (
            f"The peak{where} goes from {format_gib(self.before.peak_bytes)} ({self.before.name}) to "
            f"{format_gib(self.after.peak_bytes)} ({self.after.name}): {_signed(change)}{share}."
            + (f" By bucket: {', '.join(moved)}." if moved else " No bucket moved by half a percent.")
        )


def compare(before: Analysis | Profile, after: Analysis, device: int | None = None) -> Comparison:
    """Compare at the peak of the last whole step that both have, or at the highest peak where one has no
    steps.
    """
    one = _device(after, device)
    if isinstance(before, Profile):
        steps = _whole(one)
        return _compared(before, _profile(after, one, steps[-1] if steps else None))
    other = _device(before, one.device)
    first, second = profiles_of(before, other, after, one)
    return _compared(first, second)


def profiles_of(
    before: Analysis, old: DeviceAnalysis, after: Analysis, new: DeviceAnalysis
) -> tuple[Profile, Profile]:
    """The two peaks that are compared."""
    old_steps = {step.step: step for step in _whole(old)}
    new_steps = {step.step: step for step in _whole(new)}
    common = max(old_steps.keys() & new_steps.keys(), default=None)
    return (
        _profile(before, old, None if common is None else old_steps[common]),
        _profile(after, new, None if common is None else new_steps[common]),
    )


def profile_of_estimate(answer: Mapping[str, Any], name: str = "predicted") -> Profile:
    """The peak of a `trainmem.estimate/1` answer. Raises ``ValueError`` for anything else."""
    if answer.get("schema") != ESTIMATE_SCHEMA:
        raise ValueError(f"schema: {answer.get('schema')!r} is not {ESTIMATE_SCHEMA}")
    buckets = answer.get("buckets_at_peak")
    peak = answer.get("peak_allocated_bytes")
    if not isinstance(buckets, Mapping) or not isinstance(peak, int):
        raise ValueError("buckets_at_peak, peak_allocated_bytes: missing from the estimate")
    phases = answer.get("phases")
    peaks = {
        name: phases[f"peak_{name}_bytes"]
        for name in ("forward", "backward", "optimizer")
        if isinstance(phases, Mapping) and isinstance(phases.get(f"peak_{name}_bytes"), int)
    }
    return Profile(
        name=name,
        step=None,
        peak_bytes=peak,
        phase=str(answer.get("peak_phase") or "") or None,
        buckets_bytes={bucket: int(buckets.get(bucket, 0)) for bucket in BUCKETS},
        sites_bytes=None,
        phase_peaks_bytes=peaks,
    )


def _device(analysis: Analysis, number: int | None) -> DeviceAnalysis:
    """The device asked for, or the one with the highest peak."""
    devices = [device for device in analysis.devices if device.trace.kind == "device"]
    if not devices:
        raise ValueError(f"{analysis.snapshot.source.name}: no GPU memory to compare")
    matching = [device for device in devices if device.device == number]
    return matching[0] if matching else max(devices, key=lambda device: device.peak_allocated_bytes)


def _whole(device: DeviceAnalysis) -> list[StepPeak]:
    return [step for step in device.steps if step.is_whole]


def _profile(analysis: Analysis, device: DeviceAnalysis, step: StepPeak | None) -> Profile:
    instant = step.peak_instant if step else device.peak_instant
    numbers = live_at(device.replay, instant)
    bucket_of = device.attribution.bucket_of
    span = device.timetable.at(max(instant - 1, 0))
    peaks: dict[str, int] = (
        {str(phase): size for phase, size in step.phase_peaks_bytes.items()} if step else {}
    )
    return Profile(
        name=analysis.snapshot.source.name,
        step=step.step if step else None,
        peak_bytes=device.curves.allocated[instant],
        phase=span.phase if span else None,
        buckets_bytes=buckets_of(device.replay.blocks.size, bucket_of, numbers),
        sites_bytes={
            site.site: site.bytes for site in call_sites(device.replay, analysis.facts, bucket_of, numbers)
        },
        phase_peaks_bytes=peaks,
    )


def _compared(before: Profile, after: Profile) -> Comparison:
    buckets = [
        Difference(
            name=bucket,
            before_bytes=before.buckets_bytes.get(bucket, 0),
            after_bytes=after.buckets_bytes.get(bucket, 0),
        )
        for bucket in BUCKETS
    ]
    phases = [
        Difference(
            name=phase,
            before_bytes=before.phase_peaks_bytes[phase],
            after_bytes=after.phase_peaks_bytes[phase],
        )
        for phase in ("forward", "backward", "optimizer", "zero_grad")
        if phase in before.phase_peaks_bytes and phase in after.phase_peaks_bytes
    ]
    sites: list[Difference] = []
    if before.sites_bytes is not None and after.sites_bytes is not None:
        sites = _sites(before.sites_bytes, after.sites_bytes)
    buckets.sort(key=lambda row: -abs(row.change_bytes))
    return Comparison(before=before, after=after, buckets=buckets, sites=sites, phases=phases)


def _sites(before: Mapping[str, int], after: Mapping[str, int]) -> list[Difference]:
    """The same line first; then the same function, whose line may have moved between two versions of the
    code.
    """
    rows = [
        Difference(name=site, before_bytes=size, after_bytes=after[site])
        for site, size in before.items()
        if site in after
    ]
    old = _by_function({site: size for site, size in before.items() if site not in after})
    new = _by_function({site: size for site, size in after.items() if site not in before})
    rows += [
        Difference(name=name, before_bytes=old.get(name, 0), after_bytes=new.get(name, 0))
        for name in {**old, **new}
    ]
    rows.sort(key=lambda row: (-abs(row.change_bytes), -row.after_bytes, row.name))
    if len(rows) > _MOST_SITES:
        rest = rows[_MOST_SITES:]
        rows[_MOST_SITES:] = [
            Difference(
                name=f"{len(rest):,} other call sites",
                before_bytes=sum(row.before_bytes for row in rest),
                after_bytes=sum(row.after_bytes for row in rest),
            )
        ]
    return rows


def _by_function(sites: Mapping[str, int]) -> dict[str, int]:
    functions: dict[str, int] = {}
    for site, size in sites.items():
        path, _, name = site.partition(" ")
        file, _, line = path.rpartition(":")
        key = f"{file} {name}" if file and line.isdigit() else site
        functions[key] = functions.get(key, 0) + size
    return functions


def _signed(size: int) -> str:
    return f"{'+' if size > 0 else '-' if size < 0 else ''}{format_gib(abs(size))}"
