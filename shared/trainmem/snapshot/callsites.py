"""Lines of code, and how much of the memory at an instant each of them allocated."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from trainmem.buckets import BUCKETS, Bucket
from trainmem.snapshot.frames import is_python, line_of
from trainmem.snapshot.model import Stacks
from trainmem.snapshot.replay import BEFORE, Replay
from trainmem.snapshot.sites import StackFacts

__all__ = ["BEFORE_SITE", "CallSite", "call_sites", "folded", "site_of"]

BEFORE_SITE = "allocated before the recording"


@dataclass(frozen=True, kw_only=True, slots=True)
class CallSite:
    """One line of code at one instant."""

    site: str
    bytes: int
    blocks: int
    buckets_bytes: dict[Bucket, int]
    stack: int
    """A stack that ends there: that of its largest block."""


def site_of(facts: StackFacts, stack: int, start: int) -> str:
    """The call site of a block."""
    return BEFORE_SITE if stack < 0 and start == BEFORE else facts.sites[stack]


def call_sites(
    replay: Replay, facts: StackFacts, bucket_of: Sequence[int], numbers: Sequence[int]
) -> list[CallSite]:
    """The call sites of some blocks, most bytes first; together they hold all of the blocks."""
    blocks = replay.blocks
    total: dict[str, int] = defaultdict(int)
    count: dict[str, int] = defaultdict(int)
    parts: dict[str, list[int]] = defaultdict(lambda: [0] * len(BUCKETS))
    largest: dict[str, tuple[int, int]] = {}
    for number in numbers:
        stack, size = blocks.stack[number], blocks.size[number]
        site = site_of(facts, stack, blocks.start[number])
        total[site] += size
        count[site] += 1
        parts[site][bucket_of[number]] += size
        if size > largest.get(site, (-1, 0))[0]:
            largest[site] = (size, stack)
    return [
        CallSite(
            site=site,
            bytes=size,
            blocks=count[site],
            buckets_bytes={bucket: part for bucket, part in zip(BUCKETS, parts[site], strict=True) if part},
            stack=largest[site][1],
        )
        for site, size in sorted(total.items(), key=lambda item: (-item[1], item[0]))
    ]


def folded(stacks: Stacks, stack: int) -> list[str]:
    """A stack as lines of text, innermost first: Python frames, with runs of C++ frames as their number."""
    lines: list[str] = []
    native = 0
    if stack >= len(stacks):
        stack -= len(stacks)
        lines.append("(backward of)")
    for frame in stacks.of(stack):
        if is_python(frame):
            if native:
                lines.append(_native(native))
                native = 0
            lines.append(line_of(frame))
        else:
            native += 1
    if native:
        lines.append(_native(native))
    return lines


def _native(count: int) -> str:
    return f"({count} C++ frame{'s' if count > 1 else ''})"
