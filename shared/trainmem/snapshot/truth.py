"""How well buckets are told, measured on snapshots whose tensors were labelled while they were recorded.

The recorder (`trainmem_backend.measure.labelled_snapshot`) leaves marks in the trace, allocations of an odd size,
and beside each mark the addresses of everything it can name. A block that was there at a mark has that label.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainmem.buckets import BUCKETS, Bucket
from trainmem.snapshot.analysis import DeviceAnalysis
from trainmem.snapshot.model import Action
from trainmem.snapshot.timeline import live_at

__all__ = ["LABELS", "Score", "score"]

LABELS: dict[str, frozenset[Bucket]] = {
    "weight": frozenset({"weights"}),
    "master": frozenset({"master_weights"}),
    "gradient": frozenset({"gradients"}),
    "state": frozenset({"optimizer_state"}),
    "saved_cast": frozenset({"cast_cache"}),
    "saved_logits": frozenset({"logits"}),
    "saved": frozenset({"activations"}),
    "input": frozenset({"activations", "temporaries"}),
}
"""The buckets that are right for each label."""

_UNNAMED: frozenset[Bucket] = frozenset(BUCKETS) - {
    "weights",
    "master_weights",
    "gradients",
    "optimizer_state",
}
"""What nobody can name is none of the things that always can be named."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """Bytes at the peak, right and wrong."""

    peak_bytes: int
    right_bytes: int
    labelled_bytes: int
    mistakes: Mapping[tuple[str, str], int]
    """Bytes by (label, bucket) where they do not agree."""

    @property
    def share(self) -> float:
        """Right bytes as a share of the peak."""
        return self.right_bytes / self.peak_bytes if self.peak_bytes else 1.0


def score(device: DeviceAnalysis, marks: Sequence[Mapping[str, Any]], instant: int | None = None) -> Score:
    """Compare the buckets at an instant, by default the peak, with the labels.

    Each mark has ``size`` (bytes of its allocation) and ``labels`` (address as text, label).
    """
    labels = _labels_of_blocks(device, marks)
    bucket_of, sizes = device.attribution.bucket_of, device.replay.blocks.size
    instant = device.peak_instant if instant is None else instant
    right = labelled = 0
    mistakes: Counter[tuple[str, str]] = Counter()
    numbers = live_at(device.replay, instant)
    for number in numbers:
        label = labels.get(number)
        bucket = BUCKETS[bucket_of[number]]
        labelled += sizes[number] if label else 0
        if bucket in (LABELS[label] if label else _UNNAMED):
            right += sizes[number]
        else:
            mistakes[label or "unnamed", bucket] += sizes[number]
    return Score(
        peak_bytes=sum(sizes[number] for number in numbers),
        right_bytes=right,
        labelled_bytes=labelled,
        mistakes=dict(mistakes.most_common()),
    )


def _labels_of_blocks(device: DeviceAnalysis, marks: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """Label of each block that was there at a mark; a block keeps the first label it got."""
    trace, blocks = device.trace, device.replay.blocks
    wanted = {int(mark["size"]): mark["labels"] for mark in marks}
    labels: dict[int, str] = {}
    for event, (action, size) in enumerate(zip(trace.action, trace.size, strict=True)):
        if action != Action.ALLOC or size not in wanted:
            continue
        named = {int(address): label for address, label in wanted.pop(size).items()}
        for number in live_at(device.replay, event + 1):
            label = named.get(blocks.address[number])
            if label:
                labels.setdefault(number, label)
    if wanted:
        raise ValueError(f"marks: {len(wanted)} of {len(marks)} are not in the trace")
    return labels
