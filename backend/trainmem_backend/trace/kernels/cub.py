"""Temporary storage of CUB's device-wide algorithms.

Every part of it is rounded up to 256 bytes and the whole gets 255 bytes of slack for alignment
(cub/util_temporary_storage.cuh, AliasTemporaries).
"""

from __future__ import annotations

__all__ = ["radix_sort_bytes", "scan_bytes"]

_ALIGNMENT = 256
_DIGITS = 256
_SCAN_TILE = 896
_UNIQUE_TILE = 4096
_SORT_TILE = 4608
"""Elements of a block for 8-byte elements on an H200, where recorded sizes leave no other choice for sorts, 683
to 993 for scans and 2,560 to 4,818 for `unique`; CCCL's policies for other GPUs may differ. A tile more or less
is 16 bytes of a scan and 1 KiB of a sort."""
_SMALLEST_SORT = 2304
"""Up to here one block sorts pairs of 8-byte keys and values alone (256 threads, 9 items each)."""


def _parts(*sizes_bytes: int) -> int:
    return sum(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes_bytes) + _ALIGNMENT - 1


def scan_bytes(count: int, element_bytes: int, *, unique: bool = False) -> int:
    """A prefix sum: one descriptor of value and status for each tile and 32 more (single_pass_scan_operators).

    ``unique`` is for `unique_by_key`, which counts with such a sum.
    """
    tiles = -(-count // (_UNIQUE_TILE if unique else _SCAN_TILE))
    return _parts(2 * element_bytes * (tiles + 32), 1)


def radix_sort_bytes(count: int, key_bytes: int, value_bytes: int, *, bits: int | None = None) -> int:
    """One pass for each 8 bits of the keys, with a second copy of keys and values (dispatch_radix_sort.cuh)."""
    if count <= _SMALLEST_SORT:
        return 1
    passes = -(-(8 * key_bytes if bits is None else bits) // 8)
    tiles = -(-count // _SORT_TILE)
    copies = (count * key_bytes, count * value_bytes) if passes > 1 else ()
    return _parts(passes * _DIGITS * 8, tiles * _DIGITS * 4, *copies, passes * 4)
