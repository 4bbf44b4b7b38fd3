"""What memory-efficient attention allocates beside its results.

Source: ATen/native/transformers/cuda/mem_eff_attention, kernel_backward.h for what its workspace holds,
kernels/generate_kernels.py for the kernels that there are, and attention_backward.cu for the choice among them.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["backward_workspace", "bias_filled", "bias_uneven", "bias_whole"]

Dims = Mapping[str, int]

_LARGE_SHARED_MEMORY = (80, 87, 90, 100, 103, 110)
"""Compute capabilities with 163 KiB of shared memory a block and more; others have 64 to 99 KiB."""

_MOST_SPLIT_BLOCKS = 200


def backward_workspace(
    d: Dims, batch: str, heads: str, length: str, head_dim: str, itemsize: int, drops: bool
) -> int:
    """Bytes of accumulators: of dq always, of dk and dv where 16-bit ones do not fit in registers.

    dq's are tiles of ``rows`` queries by ``columns``, each with a lock, a counter and padding in 16 bytes before
    it. dk's and dv's hold a block of keys for every part into which the keys are split, which is as many as
    there are blocks, up to 200 over all heads.
    """
    rows, columns, in_registers = _blocks(d["capability"], d[head_dim], itemsize, drops)
    width, blocks = d[head_dim], d[batch] * d[heads]
    tiles = -(-d[length] // rows) * -(-width // columns)
    size = tiles * (16 + 4 * rows * columns)
    if not in_registers and itemsize == 2:
        splits = max(1, min(-(-d[length] // columns), _MOST_SPLIT_BLOCKS // blocks))
        size += 2 * 4 * splits * columns * (-(-width // rows) * rows)
    return blocks * size


def _blocks(capability: int, width: int, itemsize: int, drops: bool) -> tuple[int, int, bool]:
    """(queries, keys or columns of a block, whether 16-bit dk and dv stay in registers)."""
    if width <= 64:
        return 64, 64, True
    half = itemsize == 2
    if half and width <= 96 and capability in (86, 89) and not drops:
        return 128, 64, True
    if capability not in _LARGE_SHARED_MEMORY and (width <= 128 or not half):
        return 64, 64, False
    return 128, 128 if half and width <= 128 else 64, half and width <= 128


def bias_whole(d: Dims, itemsize: int) -> int:
    """The bias, where its rows are whole 8 elements."""
    return 0 if d["s"] % 8 else itemsize * d["b"] * d["s"] ** 2


def bias_uneven(d: Dims, itemsize: int) -> int:
    """The same where they are not, before they are filled up."""
    return itemsize * d["b"] * d["s"] ** 2 if d["s"] % 8 else 0


def bias_filled(d: Dims, itemsize: int) -> int:
    """The same with its rows filled up to whole 8 elements."""
    return itemsize * d["b"] * d["s"] * d["s_round8"] if d["s"] % 8 else 0
