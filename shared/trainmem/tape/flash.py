"""What FlashAttention 2 allocates beside its results."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["split_outputs", "split_sums"]

_BLOCK_ROWS = 64
_MOST_SPLITS = 128


def split_sums(d: Mapping[str, int]) -> int:
    """Bytes of the log-sum-exps of every split of the keys; 0 where keys are not split."""
    splits = _splits(d)
    return 0 if splits == 1 else 4 * splits * d["b"] * d["heads"] * d["s"]


def split_outputs(d: Mapping[str, int]) -> int:
    """Bytes of the fp32 outputs of every split of the keys, which a last kernel combines."""
    return split_sums(d) * d["d_flash"]


def _splits(d: Mapping[str, int]) -> int:
    """Over how many parts the forward spreads the keys, where query blocks leave multiprocessors idle.

    The fewest parts that come within 85% of the best use of whole waves of thread blocks, two per
    multiprocessor (num_splits_heuristic and set_params_splitkv, ATen flash_attn/flash_api.cpp).
    """
    width = d["d"]
    key_blocks = -(-d["s"] // (256 if width <= 64 else 128 if width <= 128 else 64))
    blocks = d["b"] * d["heads"] * -(-d["s"] // _BLOCK_ROWS)
    slots = 2 * d["sm_count"]
    if 5 * blocks >= 4 * slots:
        return 1
    use: dict[int, float] = {}
    for splits in range(1, min(_MOST_SPLITS, slots, key_blocks) + 1):
        if splits == 1 or -(-key_blocks // splits) != -(-key_blocks // (splits - 1)):
            waves = blocks * splits / slots
            use[splits] = waves / -(-blocks * splits // slots)
    best = max(use.values())
    return next(splits for splits, part in use.items() if part >= 0.85 * best)
