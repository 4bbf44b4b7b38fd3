"""What CUB's sorts and scans, and ATen's kernels that sort, allocate for themselves.

Each function takes a job's dimensions and answers bytes, as in `trainmem.tape.kernels`; 0 allocates nothing.
Keys and values are int64 throughout. Sizes as read from an allocator on an H200 at 2,048 and 4,096 keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

__all__ = [
    "SMALL_SORT",
    "counts_scan_scratch",
    "indexed_rows_scratch",
    "radix_sort_scratch",
    "scan_scratch",
    "sort_scratch",
    "unique_scratch",
]

Dims = Mapping[str, int]

SMALL_SORT = 4096
"""torch.sort sorts in place, in one kernel without scratch, up to this many elements (ATen/cuda/Sort.cpp)."""

_SINGLE_TILE = 256 * 9
_TILE = 384 * 12
_DIGIT_BITS = 8
_DIGITS = 1 << _DIGIT_BITS
_ALIGNMENT = 256


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def radix_sort_scratch(count: int, bits: int) -> int:
    """Scratch of cub::DeviceRadixSort::SortPairs over ``count`` int64 pairs by their low ``bits``.

    One block sorts up to 2,304 pairs and asks for a byte. Above that the one-sweep sort keeps an int64 histogram
    a digit pass, an int32 look-back state a digit and tile of 4,608 pairs, a counter a pass, and, from two
    passes on, second buffers for keys and values; each is aligned to 256 bytes (CUB's dispatch_radix_sort.cuh,
    tile sizes of tuning_radix_sort.cuh for compute capability 9.0).
    """
    if count <= _SINGLE_TILE:
        return 1
    passes = -(-bits // _DIGIT_BITS)
    tiles = -(-count // _TILE)
    buffers = 2 * _aligned(8 * count) if passes > 1 else 0
    return passes * _DIGITS * 8 + tiles * _DIGITS * 4 + buffers + _aligned(4 * passes) + _ALIGNMENT - 1


def scan_scratch(count: int, itemsize: int) -> int:
    """Scratch of a device-wide scan: a state of two items for each tile and 32 more, aligned, and 256 bytes.

    ATen scans with an operator of its own, for which tiles hold 128 x 15 items of 4 bytes or 128 x 7 of 8 (CUB's
    tuning_scan.cuh for compute capability 9.0); read from an H200 at 8, 4,096 and 32,768 items.
    """
    tiles = -(-count // (128 * (7 if itemsize == 8 else 15)))
    return _aligned(2 * itemsize * (tiles + 32)) + _ALIGNMENT + _ALIGNMENT - 1


def unique_scratch(count: int) -> int:
    """Scratch of cub::DeviceSelect::UniqueByKey over int64 pairs: as of a scan, in tiles of 4,928 pairs.

    (CUB's tuning_unique_by_key.cuh for compute capability 9.0; read from an H200 at 4,096 and 81,920 pairs.)
    """
    return _aligned(16 * (-(-count // (448 * 11)) + 32)) + _ALIGNMENT + _ALIGNMENT - 1


def counts_scan_scratch(d: Dims) -> int:
    """Scratch of the cumulative sum of the int32 token counts of experts."""
    return scan_scratch(d["experts"], 4)


def sort_scratch(d: Dims, elements: tuple[str, ...]) -> int:
    """Scratch of torch.sort of one row of int64: a radix sort of whole keys where the row is long."""
    count = prod(d[name] for name in elements)
    return radix_sort_scratch(count, 64) if count > SMALL_SORT else 0


def indexed_rows_scratch(d: Dims, indices: tuple[str, ...], rows: tuple[str, ...]) -> int:
    """Scratch of the sort of index_put's indices, by as many bits as the highest row needs."""
    count = prod(d[name] for name in indices)
    highest = prod(d[name] for name in rows) - 1
    return radix_sort_scratch(count, max(highest.bit_length(), 1))
