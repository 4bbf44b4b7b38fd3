"""Two snapshots, or a prediction and a snapshot, side by side at the peak of the same step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainmem.buckets import BUCKETS
from trainmem.snapshot.summary import Profile, Summary
from trainmem.units import format_gib

__all__ = ["Comparison", "Difference", "compare"]

_MOST_SITES = 60


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

    before: Summary
    after: Summary
    before_profile: Profile
    after_profile: Profile
    buckets: Sequence[Difference]
    """Largest change first."""

    sites: Sequence[Difference]
    phases: Sequence[Difference]

    @property
    def peak(self) -> Difference:
        """The two peaks."""
        return Difference(
            name="peak",
            before_bytes=self.before_profile.peak_bytes,
            after_bytes=self.after_profile.peak_bytes,
        )

    @property
    def verdict(self) -> str:
        """The change in one or two sentences."""
        peak = self.peak
        share = f" ({peak.change_bytes / peak.before_bytes:+.1%})" if peak.before_bytes else ""
        step = self.after_profile.step
        where = f" of step {step}" if step is not None and step == self.before_profile.step else ""
        moved = [
            f"{row.name.replace('_', ' ')} {_signed(row.change_bytes)}"
            for row in self.buckets
            if abs(row.change_bytes) >= max(0.005 * peak.before_bytes, 1)
        ][:4]
        return (
            f"The peak{where} goes from {format_gib(peak.before_bytes)} ({self.before.name}) to "
            f"{format_gib(peak.after_bytes)} ({self.after.name}): {_signed(peak.change_bytes)}{share}."
            + (f" By bucket: {', '.join(moved)}." if moved else " No bucket moved by half a percent.")
        )

    def to_json(self) -> dict[str, Any]:
        """For the command line: bytes before and after of every line."""
        return {
            "verdict": self.verdict,
            "before": {"name": self.before.name, "peak_allocated_bytes": self.before_profile.peak_bytes},
            "after": {"name": self.after.name, "peak_allocated_bytes": self.after_profile.peak_bytes},
            "step": self.after_profile.step,
            "buckets": _rows(self.buckets),
            "phases": _rows(self.phases),
            "call_sites": _rows(self.sites),
        }


def compare(before: Summary, after: Summary) -> Comparison:
    """Compare at the peak of the last step that both have whole.

    Without a common step, each run's last whole step stands for it; without steps, the peak of the recording.
    """
    common = set(before.steps) & set(after.steps)
    if common:
        first, second = before.at_step(max(common)), after.at_step(max(common))
    else:
        first, second = before.profiles[-1], after.profiles[-1]
    buckets = [
        Difference(
            name=bucket,
            before_bytes=first.buckets_bytes.get(bucket, 0),
            after_bytes=second.buckets_bytes.get(bucket, 0),
        )
        for bucket in BUCKETS
    ]
    buckets.sort(key=lambda row: -abs(row.change_bytes))
    phases = [
        Difference(
            name=phase,
            before_bytes=first.phase_peaks_bytes[phase],
            after_bytes=second.phase_peaks_bytes[phase],
        )
        for phase in ("forward", "backward", "optimizer", "zero_grad")
        if phase in first.phase_peaks_bytes and phase in second.phase_peaks_bytes
    ]
    sites: list[Difference] = []
    if first.sites_bytes is not None and second.sites_bytes is not None:
        sites = _sites(first.sites_bytes, second.sites_bytes)
    return Comparison(
        before=before,
        after=after,
        before_profile=first,
        after_profile=second,
        buckets=buckets,
        sites=sites,
        phases=phases,
    )


def _sites(before: Mapping[str, int], after: Mapping[str, int]) -> list[Difference]:
    """The same line first; then the same function, whose line may have moved between two versions."""
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


def _rows(rows: Sequence[Difference]) -> list[dict[str, Any]]:
    return [
        {"name": row.name, "before_bytes": row.before_bytes, "after_bytes": row.after_bytes} for row in rows
    ]


def _signed(size: int) -> str:
    return f"{'+' if size > 0 else '-' if size < 0 else ''}{format_gib(abs(size))}"
