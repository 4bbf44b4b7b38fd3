"""Draw one or more training steps from the board: a simplified curve, with the right heights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trainmem.buckets import BUCKETS, Bucket
from trainmem.quiz.cases import Case
from trainmem.quiz.chart import Chart, Limit, Ribbon, Series
from trainmem.units import GIB
from trainmem.whiteboard.term import Term

__all__ = ["Curve", "curve", "stacked", "total_line"]

_Level = dict[Bucket, float]
_SAMPLES = 12


@dataclass(frozen=True, slots=True)
class Curve:
    """Levels over time, and the phases they belong to: (name, first sample, last sample)."""

    levels: tuple[_Level, ...]
    phases: tuple[tuple[str, int, int], ...]

    @property
    def totals_bytes(self) -> list[float]:
        """Bytes at each sample."""
        return [sum(level.values()) for level in self.levels]


def _parts(terms: Iterable[Term]) -> tuple[float, float]:
    """Activation bytes that grow block by block, and those of blocks recomputed one at a time."""
    kept = recomputed = 0.0
    for term in terms:
        if term.bucket == "activations":
            if "recomputed" in term.name:
                recomputed += term.bytes
            else:
                kept += term.bytes
    return kept, recomputed


def curve(case: Case, *, steps: int = 1, first: bool = False, leak_bytes: float = 0) -> Curve:
    """The levels of ``steps`` consecutive steps of a job; ``first`` begins before the optimizer has state.

    A simplification for reading shapes: blocks are saved and freed evenly, logits stand at the start of
    backward, gradients arrive evenly, foreach AdamW's temporary stands in the middle of the optimizer step.
    ``leak_bytes`` are added to the floor after each step.
    """
    board, job = case.board(), case.job
    kept, recomputed = _parts(board.terms)
    fixed: _Level = {b: board.buckets[b] for b in ("weights", "master_weights")}
    state, gradients = board.buckets["optimizer_state"], board.buckets["gradients"]
    foreach = state / 2 if job.optimizer == "adamw" else 0.0
    levels: list[_Level] = []
    phases: list[tuple[str, int, int]] = []
    held, have_state = (0.0 if first or job.zero_grad == "none" else float(gradients)), not first
    for step in range(steps):
        base: _Level = {**fixed, "temporaries": leak_bytes * step}
        owned = state if have_state else 0.0
        for _ in range(job.accumulation):
            begin = len(levels)
            for i in range(_SAMPLES + 1):
                share = i / _SAMPLES
                levels.append(
                    {
                        **base,
                        "optimizer_state": owned,
                        "gradients": held,
                        "cast_cache": board.buckets["cast_cache"] * share,
                        "activations": kept * share,
                    }
                )
            phases.append(("forward", begin, len(levels) - 1))
            begin = len(levels) - 1
            for i in range(_SAMPLES + 1):
                left = 1 - i / _SAMPLES
                tooth = recomputed * (i % 2) if 0 < i < _SAMPLES else 0.0
                levels.append(
                    {
                        **base,
                        "optimizer_state": owned,
                        "gradients": max(held, gradients * (1 - left)),
                        "cast_cache": board.buckets["cast_cache"] * left,
                        "activations": kept * left + tooth,
                        "logits": board.buckets["logits"] if i == 0 else 0.0,
                    }
                )
            phases.append(("backward", begin, len(levels) - 1))
            held = float(gradients)
        begin, owned, have_state = len(levels) - 1, state, True
        for temporary in (0.0, foreach, foreach, foreach, 0.0, 0.0):
            levels.append(
                {
                    **base,
                    "optimizer_state": owned,
                    "gradients": held,
                    "temporaries": leak_bytes * step + temporary,
                }
            )
        phases.append(("optimizer", begin, len(levels) - 1))
        begin = len(levels) - 1
        held = 0.0 if job.zero_grad == "none" else held
        after: _Level = {**base, "optimizer_state": owned, "gradients": held}
        after["temporaries"] = leak_bytes * (step + 1)
        levels += [after, dict(after), dict(after), dict(after)]
        phases.append(("zero_grad", begin, len(levels) - 1))
    return Curve(tuple(levels), tuple(phases))


def _limit(limit: tuple[float, str] | None) -> Limit | None:
    return None if limit is None else Limit(limit[0] / GIB, limit[1])


def stacked(found: Curve, *, title: str, alt: str, limit: tuple[float, str] | None = None) -> Chart:
    """The curve by bucket, its phases named."""
    used = [b for b in BUCKETS if any(level.get(b, 0) for level in found.levels)]
    return Chart(
        title=title,
        x=tuple(float(i) for i in range(len(found.levels))),
        series=tuple(
            Series(b.replace("_", " "), b, tuple(level.get(b, 0) / GIB for level in found.levels))
            for b in used
        ),
        ribbons=tuple(Ribbon(name, start, end) for name, start, end in found.phases),
        limit=_limit(limit),
        alt=alt,
    )


def total_line(
    found: Curve,
    *,
    title: str,
    alt: str,
    ribbons: Iterable[Ribbon] = (),
    limit: tuple[float, str] | None = None,
) -> Chart:
    """The curve's total only, as a counter shows it; phases are named only where ``ribbons`` says so."""
    return Chart(
        title=title,
        x=tuple(float(i) for i in range(len(found.levels))),
        series=(Series("allocated", None, tuple(total / GIB for total in found.totals_bytes)),),
        ribbons=tuple(ribbons),
        limit=_limit(limit),
        alt=alt,
    )
