"""The allocator's settings, as ``PYTORCH_ALLOC_CONF`` states them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainmem.units import MIB

__all__ = [
    "LARGE_SEGMENT_BYTES",
    "MAX_BYTES_OF_SMALL_POOL",
    "MIN_BLOCK_BYTES",
    "MIN_REQUEST_OF_OWN_SEGMENT_BYTES",
    "SMALL_SEGMENT_BYTES",
    "TURN_ON_EXPANDABLE_SEGMENTS",
    "AllocatorSettings",
]

TURN_ON_EXPANDABLE_SEGMENTS = (
    "PYTORCH_ALLOC_CONF=expandable_segments:True (PYTORCH_CUDA_ALLOC_CONF before torch 2.10)"
)
"""What to set, as every piece of advice says it. The old name has warned since 2.9, but 2.9 does not yet read this
option from the new one on CUDA (pytorch#183387)."""

MIN_BLOCK_BYTES = 512
"""Every block is a multiple of this (``kMinBlockSize``)."""

MAX_BYTES_OF_SMALL_POOL = 1 * MIB
"""Requests up to this size live in the small pool (``kSmallSize``)."""

SMALL_SEGMENT_BYTES = 2 * MIB
"""Size of a small segment (``kSmallBuffer``), and the step of large segments (``kRoundLarge``)."""

LARGE_SEGMENT_BYTES = 20 * MIB
"""Size of a segment that large requests share (``kLargeBuffer``)."""

MIN_REQUEST_OF_OWN_SEGMENT_BYTES = 10 * MIB
"""A request of this size and more gets a segment of about its own size (``kMinLargeAlloc``)."""

_DIVISION_INTERVALS = 16
_IGNORED = frozenset(
    {
        "backend",
        "graph_capture_record_stream_reuse",
        "pinned_free_catch_all",
        "pinned_num_register_threads",
        "pinned_reserve_segment_size_mb",
        "pinned_max_cached_size_mb",
        "pinned_max_round_threshold_mb",
        "pinned_use_background_threads",
        "pinned_use_cuda_host_register",
        "pinned_use_hip_host_register",
        "release_lock_on_cudamalloc",
        "release_lock_on_hipmalloc",
        "throw_on_cudamalloc_oom",
    }
)
_OPTION = re.compile(r"(?P<name>[A-Za-z_0-9]+):(?P<value>\[[^\]]*\]|[^,\[\]]+)(?:,|$)")


@dataclass(frozen=True, kw_only=True, slots=True)
class AllocatorSettings:
    """What changes the placement of blocks. The defaults are PyTorch's.

    Source: torch 2.13, ``c10/core/AllocatorConfig.h`` and ``c10/cuda/CUDAAllocatorConfig.h``.
    """

    max_split_size_bytes: int | None = None
    """Blocks of this size and more are never split, and serve only requests of about their own size."""

    max_non_split_rounding_bytes: int = LARGE_SEGMENT_BYTES
    """How much larger than its request such an unsplittable block may be."""

    roundup_power2_divisions: tuple[int, ...] = (0,) * _DIVISION_INTERVALS
    """Steps between powers of two that sizes are rounded up to: one entry for each of [1, 2) MiB, [2, 4) MiB
    and so on up to 32 GiB and more; 0 rounds to 512 bytes only. Smaller sizes use the first entry."""

    garbage_collection_threshold: float = 0.0
    """Share of the per-process cap above which idle segments are given back before asking for a new one."""

    expandable_segments: bool = False
    """One growing segment per pool and stream, mapped page by page, in place of many ``cudaMalloc`` calls."""

    large_segment_size_bytes: int = LARGE_SEGMENT_BYTES
    """Segment size of requests between 1 and 10 MiB, and page size of an expandable large segment."""

    per_process_memory_fraction: float = 1.0
    """The cap: share of the device's memory that segments may take; 1 is no cap
    (``torch.cuda.set_per_process_memory_fraction``)."""

    def __post_init__(self) -> None:
        if self.max_split_size_bytes is not None and self.max_split_size_bytes < LARGE_SEGMENT_BYTES:
            raise ValueError(
                f"max_split_size_bytes: {self.max_split_size_bytes} is below {LARGE_SEGMENT_BYTES} (20 MiB), "
                "the least PyTorch allows"
            )
        if self.max_non_split_rounding_bytes < LARGE_SEGMENT_BYTES:
            raise ValueError(
                f"max_non_split_rounding_bytes: {self.max_non_split_rounding_bytes} is below "
                f"{LARGE_SEGMENT_BYTES} (20 MiB), the least PyTorch allows"
            )
        divisions = self.roundup_power2_divisions
        if len(divisions) != _DIVISION_INTERVALS or any(d < 0 or d & (d - 1) for d in divisions):
            raise ValueError(
                f"roundup_power2_divisions: {divisions!r} is not {_DIVISION_INTERVALS} powers of two or zeros"
            )
        if not 0.0 <= self.garbage_collection_threshold < 1.0:
            raise ValueError(
                f"garbage_collection_threshold: {self.garbage_collection_threshold} is not in [0, 1)"
            )
        size = self.large_segment_size_bytes
        if size <= MIN_REQUEST_OF_OWN_SEGMENT_BYTES or size % MIB:
            raise ValueError(f"large_segment_size_bytes: {size} is not a whole number of MiB above 10")
        if not 0.0 < self.per_process_memory_fraction <= 1.0:
            raise ValueError(
                f"per_process_memory_fraction: {self.per_process_memory_fraction} is not in (0, 1]"
            )

    @classmethod
    def parse(cls, text: str) -> AllocatorSettings:
        """Settings from the value of ``PYTORCH_ALLOC_CONF``.

        Options that do not move device blocks (pinned memory, locks) are accepted and have no effect.
        """
        squeezed = "".join(text.split())
        values: dict[str, Any] = {}
        position = 0
        while position < len(squeezed):
            match = _OPTION.match(squeezed, position)
            if match is None:
                raise ValueError(
                    f"PYTORCH_ALLOC_CONF: cannot read {squeezed[position:]!r}; write option:value, "
                    "for example expandable_segments:True,max_split_size_mb:128"
                )
            values.update(_option(match["name"], match["value"]))
            position = match.end()
        return cls(**values)

    def __str__(self) -> str:
        """The value of ``PYTORCH_ALLOC_CONF`` that says the same; empty for the defaults."""
        default, options = AllocatorSettings(), []
        for name, (field, _) in _OPTIONS.items():
            value = getattr(self, field)
            if value == getattr(default, field):
                continue
            if name.endswith("_mb"):
                value = value // MIB
            elif field == "roundup_power2_divisions":
                steps = (f"{1 << interval}:{divisions}" for interval, divisions in enumerate(value))
                value = value[0] if len(set(value)) == 1 else f"[{','.join(steps)}]"
            options.append(f"{name}:{value}")
        return ",".join(options)

    def rounded(self, requested_bytes: int) -> int:
        """Bytes that a request occupies at least: rounded to 512, or to its power-of-two division."""
        if requested_bytes < MIN_BLOCK_BYTES:
            return MIN_BLOCK_BYTES
        interval = min(max(requested_bytes.bit_length() - 21, 0), _DIVISION_INTERVALS - 1)
        divisions = self.roundup_power2_divisions[interval]
        if divisions > 1 and requested_bytes > MIN_BLOCK_BYTES * divisions:
            # The step is an integer power of two, so a power of two itself stays as it is.
            step = (1 << (requested_bytes.bit_length() - 1)) // divisions
        else:
            step = MIN_BLOCK_BYTES
        return -(-requested_bytes // step) * step

    def segment_bytes(self, rounded_bytes: int) -> int:
        """Bytes that ``cudaMalloc`` is asked for when no free block fits a request of ``rounded_bytes``."""
        if rounded_bytes <= MAX_BYTES_OF_SMALL_POOL:
            return SMALL_SEGMENT_BYTES
        if rounded_bytes < MIN_REQUEST_OF_OWN_SEGMENT_BYTES:
            return self.large_segment_size_bytes
        return -(-rounded_bytes // SMALL_SEGMENT_BYTES) * SMALL_SEGMENT_BYTES


def _option(name: str, value: str) -> dict[str, Any]:
    if name in _IGNORED:
        if name == "backend" and value != "native":
            raise ValueError(f"backend: {value!r} is not modelled; the caching allocator is backend:native")
        return {}
    if name not in _OPTIONS:
        raise ValueError(
            f"PYTORCH_ALLOC_CONF: {name!r} is not an option; allowed are {', '.join(sorted(_OPTIONS))}"
        )
    field, read = _OPTIONS[name]
    try:
        return {field: read(value)}
    except ValueError as error:
        raise ValueError(f"{name}: cannot read {value!r}: {error}") from error


def _mebibytes(value: str) -> int:
    return int(value) * MIB


def _boolean(value: str) -> bool:
    if value not in ("True", "False"):
        raise ValueError("it is neither True nor False")
    return value == "True"


def _divisions(value: str) -> tuple[int, ...]:
    if not value.startswith("["):
        return (int(value),) * _DIVISION_INTERVALS
    divisions = [0] * _DIVISION_INTERVALS
    last = None
    for entry in value[1:-1].split(","):
        limit, _, steps = entry.partition(":")
        if limit == ">":
            start = 0 if last is None else last + 1
            divisions[start:] = [int(steps)] * (_DIVISION_INTERVALS - start)
            continue
        if int(limit) < 1 or int(limit) & (int(limit) - 1):
            raise ValueError(f"the interval {limit} is not a power of two (in MiB)")
        index = min(int(limit).bit_length() - 1, _DIVISION_INTERVALS - 1)
        if last is None:
            divisions[:index] = [int(steps)] * index
        divisions[index] = int(steps)
        last = index
    return tuple(divisions)


_OPTIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "max_split_size_mb": ("max_split_size_bytes", _mebibytes),
    "max_non_split_rounding_mb": ("max_non_split_rounding_bytes", _mebibytes),
    "large_segment_size_mb": ("large_segment_size_bytes", _mebibytes),
    "garbage_collection_threshold": ("garbage_collection_threshold", float),
    "per_process_memory_fraction": ("per_process_memory_fraction", float),
    "expandable_segments": ("expandable_segments", _boolean),
    "roundup_power2_divisions": ("roundup_power2_divisions", _divisions),
}
"""Each option's field, and how its value is read."""
