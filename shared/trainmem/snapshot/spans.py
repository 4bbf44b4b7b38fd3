"""A stretch of the recording that belongs to one phase of one step."""

from __future__ import annotations

from dataclasses import dataclass

from trainmem.recording import Phase

__all__ = ["Span"]


@dataclass(frozen=True, slots=True)
class Span:
    """Events ``start`` up to but not including ``end`` belong to one phase of one step (0 before the first)."""

    phase: Phase
    step: int
    start: int
    end: int
    micro: int = 0
    """Number of the micro batch within the step, from 0."""
