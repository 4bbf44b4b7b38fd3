"""Whether bitsandbytes multiplies with an NF4 weight as it is packed, or unpacks it first.

bitsandbytes 0.50 (backends/cuda/ops.py, the choice behind `gemm_4bit`) has a kernel that reads packed weights,
which wins where few rows meet a weight, by thresholds tuned per GPU: in rows, in the weight's shape, and in how
many blocks of 64 outputs there are for each multiprocessor. Training rarely runs it: 512 tokens a micro batch
and more unpack nearly every weight of a large model. Backward always unpacks.
"""

from __future__ import annotations

from trainmem.tape.hardware import Hardware

__all__ = ["reads_packed"]

_BLOCK = 64
_SMALL_WEIGHT = 4 << 20


def reads_packed(chip: Hardware, rows: int, outputs: int, inputs: int) -> bool:
    """Whether ``rows`` rows meet a weight of (outputs, inputs) as it is packed."""
    if rows > 1536 or inputs % _BLOCK:
        return False
    return rows <= _most_rows(chip.capability, chip.sm_count, rows, outputs, inputs)


def _most_rows(capability: tuple[int, int], sms: int, m: int, n: int, k: int) -> int:
    """Up to how many rows the packed kernel runs."""
    blocks = -(-n // 64)
    if m <= 4:
        return 4
    if capability < (8, 0):
        return 7  # its tensor-core kernel wants fp16, and the layers compute in bf16
    if capability in ((8, 7), (11, 0)):
        return 4
    if capability[0] == 10:
        if blocks >= 3 * sms:
            return 32
        return 8 if blocks >= sms and k < n else 4
    if n * k < _SMALL_WEIGHT:
        return _small_weight(capability, sms, blocks, n, k)
    if m < 8:
        return 7 if _few_rows(capability, sms, blocks, m, n, k) else 4
    return min(512, _tiers(capability, sms, blocks, n, k))


def _small_weight(capability: tuple[int, int], sms: int, blocks: int, n: int, k: int) -> int:
    if 2 * k < n:
        low = 3 * blocks < sms
        if capability == (8, 0):
            return 1536 if low else 512
        if capability == (9, 0):
            return 512 if low else 320
        crowded = blocks < sms and blocks * k > 320 * sms
        return 192 if crowded else 320
    quarter = 4 * blocks <= sms
    if capability == (8, 0) and quarter:
        return 384 if k < n else 32 if 8 * blocks <= sms else 128
    if quarter:
        return 32 if k < n or capability in ((8, 0), (9, 0)) else 23
    return 16 if 2 * blocks <= sms else 4


def _few_rows(capability: tuple[int, int], sms: int, blocks: int, m: int, n: int, k: int) -> bool:
    """Five to seven rows: nearly always, but for deep or square weights on GPUs with HBM."""
    least = {(9, 0): 36, (8, 0): 48}.get(capability)
    if least is None or m < 6 or blocks < least:
        return True
    below_three_quarters, below_three_fifths = 4 * blocks < 3 * sms, 5 * blocks < 3 * sms
    if k > n and below_three_quarters:
        return False
    if k != n:
        return True
    if capability == (8, 0):
        return not below_three_fifths
    return below_three_fifths or not below_three_quarters


def _tiers(capability: tuple[int, int], sms: int, blocks: int, n: int, k: int) -> int:
    """Eight rows and more on a weight of 4 Mi elements and more."""
    if capability == (8, 0):
        return _ampere(sms, blocks, n, k)
    if capability == (8, 6):
        return 128 if blocks >= sms else 64 if blocks >= sms // 2 else 16
    if capability == (9, 0):
        return _hopper(sms, blocks, n, k)
    if capability == (12, 0):
        return _blackwell(sms, blocks, n, k)
    if capability == (12, 1) and blocks >= sms:
        return 256
    return _ada(sms, blocks, n, k)


def _ampere(sms: int, blocks: int, n: int, k: int) -> int:
    if blocks >= 3 * sms:
        return 128
    if blocks >= sms:
        return 64 if k < n else 32
    deep = k >= 3 * n and 4 * blocks > sms
    square = k == n and blocks >= 48 and 5 * blocks < 3 * sms
    if deep or square:
        return 4
    if 2 * blocks < sms:
        if k <= n:
            return 128
        if 3 * blocks >= sms:
            return 4
    return 128 if blocks >= sms // 2 and k < n else 16


def _hopper(sms: int, blocks: int, n: int, k: int) -> int:
    for waves, most in ((3, 64), (2, 48), (1, 32)):
        if blocks >= waves * sms:
            return most
    if blocks < sms // 2 or (k >= n and 4 * blocks < 3 * sms):
        return 4
    return 16


def _blackwell(sms: int, blocks: int, n: int, k: int) -> int:
    for waves, most in ((3, 256), (2, 128)):
        if blocks >= waves * sms:
            return most
    if 5 * blocks >= 4 * sms:
        return 96 if k >= n else 64
    if blocks >= sms // 2:
        return 64 if 2 * k >= n and blocks >= 128 else 8
    return 16 if k > 2 * n and blocks > 64 else 8


def _ada(sms: int, blocks: int, n: int, k: int) -> int:
    for waves, most in ((3, 256), (2, 128)):
        if blocks >= waves * sms:
            return most
    deep = k > 2 * n
    if 5 * blocks >= 4 * sms:
        if deep or blocks >= 200:
            return 128
        return 64 if k < n else 128 if sms >= 60 else 32
    if blocks >= sms // 2:
        return 64 if deep else 8 if blocks >= 64 else 32
    if k > n and blocks <= 48:
        return 12 if k >= 3 * n else 10
    return 16 if deep or blocks < 48 else 8
