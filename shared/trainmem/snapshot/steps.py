"""Each step's own peak, so that a steady one can be named and two runs compared step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainmem.recording import Phase
from trainmem.snapshot.phases import Timetable

__all__ = ["StepPeak", "steady_step", "step_peaks"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepPeak:
    """One step: where it begins and ends, and where it is highest."""

    step: int
    start: int
    end: int
    peak_instant: int
    peak_bytes: int
    peak_phase: Phase
    phase_peaks_bytes: dict[Phase, int]
    is_whole: bool
    """Whether it has a forward, a backward and, if any step does, an optimizer."""


def step_peaks(timetable: Timetable, allocated: Sequence[int]) -> list[StepPeak]:
    """The steps in order."""
    by_step: dict[int, list[int]] = {}
    for number, span in enumerate(timetable.spans):
        if span.step:
            by_step.setdefault(span.step, []).append(number)
    has_optimizer = any(span.phase == "optimizer" for span in timetable.spans)
    needed = {"forward", "backward"} | ({"optimizer"} if has_optimizer else set())
    steps: list[StepPeak] = []
    for step, numbers in by_step.items():
        spans = [timetable.spans[number] for number in numbers]
        peaks: dict[Phase, int] = {}
        best, best_phase, best_instant = -1, spans[0].phase, spans[0].start
        for span in spans:
            stretch = allocated[span.start : span.end + 1]
            high = max(stretch)
            peaks[span.phase] = max(peaks.get(span.phase, 0), high)
            if high > best:
                best, best_phase, best_instant = high, span.phase, span.start + stretch.index(high)
        steps.append(
            StepPeak(
                step=step,
                start=spans[0].start,
                end=spans[-1].end,
                peak_instant=best_instant,
                peak_bytes=best,
                peak_phase=best_phase,
                phase_peaks_bytes=peaks,
                is_whole=needed <= {span.phase for span in spans},
            )
        )
    return steps


def steady_step(steps: Sequence[StepPeak]) -> StepPeak | None:
    """The last whole step, by preference not the first, in which the optimizer's state is made."""
    whole = [step for step in steps if step.is_whole] or list(steps)
    return whole[-1] if whole else None
