"""What CUDA kernels allocate for themselves: staging buffers, workspaces, sort buffers.

Each function takes the dimensions of a job (a dict of ints that also carries the device's ``sm_count`` and
``threads_per_sm``) and answers bytes; 0 means that the kernel allocates nothing. They stand in a tape's programs
as symbolic sizes and are evaluated per job.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt, prod

from trainmem.tape.sorting import radix_sort_scratch, scan_scratch, unique_scratch

__all__ = [
    "atomic_accumulator",
    "atomic_segment_owners",
    "chunk_cat_metadata",
    "cudnn_attention_backward_workspace",
    "layer_norm_partials",
    "layer_norm_semaphores",
    "layer_norm_staging",
    "liger_input",
    "liger_logits",
    "liger_weight",
    "many_layer_norm_rows",
    "nf4_scales",
    "partial_segment_offsets",
    "partial_segment_sums",
    "reduction_semaphores",
    "reduction_staging",
    "scan_workspace",
    "segment_scan",
    "segments",
    "sharded_part",
    "sharded_whole",
    "sort_workspace",
    "sorted_indices",
    "sorted_scalar",
    "sorted_scan",
    "split_copy_metadata",
]

Dims = Mapping[str, int]


def _size(d: Dims, names: tuple[str, ...]) -> int:
    return prod(d[name] for name in names)


def _last_power_of_two(n: int) -> int:
    return 1 << (n.bit_length() - 1) if n > 0 else 1


def _reduction(
    d: Dims, outputs: int, inputs: int, *, fastest: bool, itemsize: int
) -> tuple[int, int, int, int, bool]:
    """(blocks that share an output, grid width, block width, output vector, splits x) of a sum over one dimension.

    ``fastest``: the reduced dimension is the contiguous one. The launch rules of ATen/native/cuda/Reduce.cuh
    (setReduceConfig): 512 threads, 32 lanes, 4 outputs a thread where they divide evenly, and a split over
    blocks only when every thread would still add 256 values.
    """
    vector = 1
    if fastest:
        dim0, dim1 = inputs, outputs
        if outputs == 1 and dim0 > 128:
            dim0 //= 4
    else:
        dim0, dim1 = outputs, inputs
        while vector < 4 and outputs % (vector * 2) == 0:
            vector *= 2
        dim0 //= vector
    threads = 512 // vector
    width_limit = _last_power_of_two(dim0) if dim0 < threads else threads
    height_limit = _last_power_of_two(dim1) if dim1 < threads else threads
    width = min(width_limit, 32)
    height = min(height_limit, threads // width)
    width = min(width_limit, threads // height)
    step_input = step_output = 1
    if fastest:
        step_input *= width
    else:
        step_output *= width
    values = -(-inputs // step_input)
    across_warps = values >= height * 16 or values >= 256
    if across_warps:
        step_input *= height
    else:
        step_output *= height
    values = -(-inputs // step_input)
    grid = -(-(outputs // vector) // step_output)
    target = d["sm_count"] * (d["threads_per_sm"] // (width * height))
    shares = 1
    if across_warps and values >= 256 and grid <= target:
        shares = max(min(-(-target // grid), -(-values // 16)), -(-values // 256))
    return shares, grid, width, vector, fastest


def reduction_staging(
    d: Dims, outputs: tuple[str, ...], inputs: tuple[str, ...], fastest: bool, itemsize: int
) -> int:
    """Bytes in which the blocks of one sum leave their partial results (fp32 accumulators)."""
    count = _size(d, outputs)
    shares, _, width, vector, splits_x = _reduction(
        d, count, _size(d, inputs), fastest=fastest, itemsize=itemsize
    )
    if shares == 1:
        return 0
    return 4 * count * shares * (1 if splits_x else width * vector)


def reduction_semaphores(
    d: Dims, outputs: tuple[str, ...], inputs: tuple[str, ...], fastest: bool, itemsize: int
) -> int:
    """Bytes of the counters by which the blocks of one sum find the last among them."""
    shares, grid, *_ = _reduction(d, _size(d, outputs), _size(d, inputs), fastest=fastest, itemsize=itemsize)
    return 0 if shares == 1 else 4 * grid


def cudnn_attention_backward_workspace(
    d: Dims, batch: str, heads: str, kv_heads: str, length: str, head_dim: str
) -> int:
    """Scratch of cuDNN's flash attention backward.

    An fp32 accumulator for dq, one fp32 row sum per query, 256 bytes, and, where key/value heads are shared,
    16-bit dk and dv for every query head before they are summed.
    """
    b, a, s, e = d[batch], d[heads], d[length], d[head_dim]
    size = 4 * b * a * s * e + 4 * b * a * s + 256
    if d[kv_heads] != a:
        size += 2 * 2 * b * a * s * e
    return size


SORTED_EMBEDDING_FROM = 3072
"""embedding_dense_backward sorts its indices above this many (Embedding.cu)."""


def sorted_indices(d: Dims, tokens: tuple[str, ...]) -> int:
    """One int64 buffer over all indices of a sorting embedding backward."""
    count = _size(d, tokens)
    return 8 * count if count > SORTED_EMBEDDING_FROM else 0


def sorted_scalar(d: Dims, tokens: tuple[str, ...]) -> int:
    """A counter that a sorting embedding backward leaves on the device."""
    return 8 if _size(d, tokens) > SORTED_EMBEDDING_FROM else 0


def sort_workspace(d: Dims, tokens: tuple[str, ...]) -> int:
    """Scratch of the sort of a sorting embedding backward, by whole keys."""
    count = _size(d, tokens)
    return radix_sort_scratch(count, 64) if count > SORTED_EMBEDDING_FROM else 0


def sorted_scan(d: Dims, tokens: tuple[str, ...]) -> int:
    """Scratch of the search for distinct values among the sorted indices."""
    count = _size(d, tokens)
    return unique_scratch(count) if count > SORTED_EMBEDDING_FROM else 0


def _segments(d: Dims, tokens: tuple[str, ...], rows: str) -> int:
    """Distinct indices at most; 0 where nothing is sorted."""
    count = _size(d, tokens)
    return min(count, d[rows]) if count > SORTED_EMBEDDING_FROM else 0


def segments(d: Dims, tokens: tuple[str, ...], rows: str) -> int:
    """One int64 for every distinct index."""
    return 8 * _segments(d, tokens, rows)


def segment_scan(d: Dims, tokens: tuple[str, ...], rows: str) -> int:
    """Scratch of the scan over the partial sums of every distinct index."""
    count = _segments(d, tokens, rows)
    return scan_scratch(count, 8) if count else 0


def _partial_segments(d: Dims, tokens: tuple[str, ...], rows: str) -> int:
    """Partial sums at most: 10 rows each, and one more a distinct index."""
    count = _segments(d, tokens, rows)
    return _size(d, tokens) // 10 + count if count else 0


def partial_segment_offsets(d: Dims, tokens: tuple[str, ...], rows: str) -> int:
    """int64 starts of the partial sums."""
    return 8 * _partial_segments(d, tokens, rows)


def _adds_at_once(d: Dims, tokens: tuple[str, ...], rows: str, width: str) -> bool:
    """Whether partial sums are added to the table by atomics: where summing them would fill too few blocks."""
    warped = -(-d[width] // 32) * 32
    grid = -(-_segments(d, tokens, rows) * warped // min(warped, 1024))
    return grid < 4 * d["sm_count"] and _partial_segments(d, tokens, rows) > 4 * grid


def partial_segment_sums(d: Dims, tokens: tuple[str, ...], rows: str, width: str) -> int:
    """fp32 partial sums of a sorting embedding backward."""
    if _adds_at_once(d, tokens, rows, width):
        return 0
    return 4 * _partial_segments(d, tokens, rows) * d[width]


def atomic_segment_owners(d: Dims, tokens: tuple[str, ...], rows: str, width: str) -> int:
    """int64 distinct index of every partial sum that is added by atomics."""
    return 8 * _partial_segments(d, tokens, rows) if _adds_at_once(d, tokens, rows, width) else 0


def atomic_accumulator(d: Dims, tokens: tuple[str, ...], rows: str, width: str, itemsize: int) -> int:
    """The fp32 table in which atomics add up a 16-bit one's gradient."""
    if itemsize == 4 or not _adds_at_once(d, tokens, rows, width):
        return 0
    return 4 * d[rows] * d[width]


def scan_workspace(d: Dims, length: tuple[str, ...], itemsize: int = 8) -> int:
    """Scratch of a cumulative sum over one row, which runs through CUB.

    Over several rows it runs through ATen's own kernel, without scratch.
    """
    return scan_scratch(_size(d, length), itemsize)


def nf4_scales(d: Dims, numel: str) -> int:
    """fp32 scales of an NF4 weight, one a block of 64 elements."""
    return 4 * -(-d[numel] // 64)


def _liger_rows(d: Dims, which: str) -> int:
    """Tokens in the first, a middle or the last chunk of Liger's loss; 0 where there is no such chunk.

    chunk = next_power_of_2(ceil(tokens / ceil(V / h))), so that a chunk's logits take about tokens x h.
    """
    tokens = d["b"] * d["s"]
    share = -(-tokens // -(-d["v"] // d["h"]))
    chunk = min(1 << (share - 1).bit_length(), tokens)
    count = -(-tokens // chunk)
    if which == "first":
        return chunk
    if which == "middle":
        return chunk if count > 2 else 0
    return tokens - (count - 1) * chunk if count > 1 else 0


def liger_logits(d: Dims, which: str, itemsize: int) -> int:
    """The logits of one chunk."""
    return _liger_rows(d, which) * d["v"] * itemsize


def liger_input(d: Dims, which: str, itemsize: int) -> int:
    """The hidden states of one chunk."""
    return _liger_rows(d, which) * d["h"] * itemsize


def liger_weight(d: Dims, which: str, rows: str, itemsize: int) -> int:
    """The head's weight cast for one chunk."""
    return d[rows] * d["h"] * itemsize if _liger_rows(d, which) else 0


def many_layer_norm_rows(rows: int, width: int, sm_count: int) -> bool:
    """Whether the gradients of a LayerNorm's weight are summed in two passes: many rows, few columns."""
    return rows > 64 * 1024 and width // 32 < sm_count // 2


def _layer_norm_blocks(d: Dims, rows: tuple[str, ...], width: str) -> int:
    """Blocks along the rows: 32 rows each, and at most 32,768 blocks in all."""
    across = -(-d[width] // 32)
    return min(32 * 1024 // across, -(-_size(d, rows) // 32))


def layer_norm_partials(d: Dims, rows: tuple[str, ...], width: str, itemsize: int) -> int:
    """The partial sums of one gradient: a row a block."""
    return _layer_norm_blocks(d, rows, width) * d[width] * itemsize


def layer_norm_staging(d: Dims, rows: tuple[str, ...], width: str) -> int:
    """Staging memory of the sum over those partial sums."""
    scope = {"outputs": d[width], "inputs": _layer_norm_blocks(d, rows, width)}
    return reduction_staging({**d, **scope}, ("outputs",), ("inputs",), False, 4)


def layer_norm_semaphores(d: Dims, rows: tuple[str, ...], width: str) -> int:
    """Counters of the sum over those partial sums."""
    scope = {"outputs": d[width], "inputs": _layer_norm_blocks(d, rows, width)}
    return reduction_semaphores({**d, **scope}, ("outputs",), ("inputs",), False, 4)


_COPY_TILE = 128 * 16
"""Bytes that one block of a copying kernel moves in a round."""


def _shard_of(d: Dims, name: str) -> int:
    """Elements of one rank's shard of a parameter, cut along its first dimension, the last shard padded."""
    rows = d[f"rows:{name}"]
    return -(-rows // d["world"]) * (d[f"p:{name}"] // rows)


def _shard_elements(d: Dims, names: tuple[str, ...]) -> int:
    return sum(_shard_of(d, name) for name in names)


def sharded_part(d: Dims, names: tuple[str, ...], itemsize: int) -> int:
    """One rank's shards of a group in a row."""
    return _shard_elements(d, names) * itemsize


def sharded_whole(d: Dims, names: tuple[str, ...], itemsize: int) -> int:
    """Every rank's shards of a group in a row."""
    return d["world"] * _shard_elements(d, names) * itemsize


def split_copy_metadata(d: Dims, names: tuple[str, ...], itemsize: int) -> int:
    """Addresses, sizes and block numbers that split_with_sizes_copy hands its kernel, 8 bytes each.

    ATen/native/cuda/TensorShape.cu: blocks of 128 threads and 16 bytes a thread, at most two waves of them; where
    more would be needed, a block does several rounds, shared between chunks and pieces of a chunk.
    """
    chunks = [_shard_of(d, name) * itemsize for name in names]
    blocks = sum(-(-chunk // _COPY_TILE) for chunk in chunks)
    most = d["sm_count"] * d["threads_per_sm"] // 128 * 2
    rounds = -(-blocks * d["world"] // most)
    chunks_each = min(isqrt(max(rounds - 1, 0)) + 1, d["world"])
    tile = _COPY_TILE * -(-rounds // chunks_each)
    return 8 * (4 * len(names) + 1 + sum(-(-chunk // tile) for chunk in chunks))


def chunk_cat_metadata(d: Dims, names: tuple[str, ...], itemsize: int) -> int:
    """Addresses, sizes and block numbers that chunk_cat hands its kernel, 8 bytes each (TensorShape.cu)."""
    blocks = sum(-(-_shard_of(d, name) * itemsize // _COPY_TILE) for name in names)
    return 8 * (6 * len(names) + 2 + blocks)
