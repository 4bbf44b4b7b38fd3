"""Fused attention kernels: what each keeps and takes on the way."""

from __future__ import annotations

from typing import Any

import torch

from trainmem_backend.trace.kernels.registry import KernelCall, rule

__all__ = ["key_splits"]


@rule("_scaled_dot_product_cudnn_attention")
def _cudnn_forward(call: KernelCall) -> Any:
    """Seed and offset of the random numbers, output, log-sum-exp, and a workspace of 256 bytes.

    The meta kernel answers a log-sum-exp always; cuDNN's makes none where no gradient is wanted (MHA.cpp).
    """
    result = call.result()
    recorder = call.recorder
    output, log_sum_exp = result[0], result[1]
    for tensor in (result[6], result[7]):
        recorder.watch(tensor)
    recorder.watch(output)
    if log_sum_exp is not None and call.named("compute_log_sumexp"):
        recorder.watch(log_sum_exp)
    recorder.scratch(256)
    return result


@rule("_scaled_dot_product_cudnn_attention_backward")
def _cudnn_backward(call: KernelCall) -> Any:
    """Gradients of q, k and v, and a workspace: an fp32 accumulator of dq and one row sum per query.

    With grouped heads the gradients of k and v are first made per query head, then summed.
    """
    result = call.outputs(call.result())
    query = call.args[1]
    key, value = call.args[2], call.args[3]
    batch, heads, length, width = query.shape
    rows = batch * heads * length
    expanded = 0
    if key.shape[1] != heads:
        expanded = batch * heads * key.shape[2] * (width + value.shape[3]) * query.element_size()
    call.recorder.scratch(4 * rows * width + 4 * rows + expanded + 256)
    return result


@rule("_scaled_dot_product_flash_attention")
def _flash_forward(call: KernelCall) -> Any:
    """Output, log-sum-exp, the random state and a second, unused one (mha_fwd in flash_attn/flash_api.cpp).

    Where batch, heads and blocks of 64 queries leave multiprocessors idle, keys are split and partial outputs
    kept in fp32 until they are combined.
    """
    result = call.result()
    recorder = call.recorder
    query, key = call.args[0], call.args[1]
    recorder.watch(result[0])
    recorder.watch(result[1])
    batch, heads, length, width = query.shape
    splits = 1
    if not call.argument(3, "dropout_p", 0.0):
        splits = key_splits(batch * heads, length, key.shape[2], width, call.traits.multiprocessors)
    partial = []
    if splits > 1:
        rows = splits * batch * heads * length
        partial = [recorder.allocate(4 * rows), recorder.allocate(4 * rows * _rounded_width(width))]
    recorder.watch(result[6], 16)
    recorder.watch(result[7], 8)
    for number in reversed(partial):
        recorder.free(number)
    return result


def _rounded_width(width: int) -> int:
    unit = 32 if width <= 128 else 64
    return -(-width // unit) * unit


def key_splits(heads: int, queries: int, keys: int, width: int, multiprocessors: int) -> int:
    """num_splits_heuristic of FlashAttention 2: the fewest splits within 85% of the best use of the GPU.

    ``heads`` are those of all sequences together.
    """
    block_keys = 256 if width <= 64 else 128 if width <= 128 else 64
    key_blocks = -(-keys // block_keys)
    blocks = heads * -(-queries // 64)
    slots = 2 * multiprocessors
    if blocks >= 0.8 * slots:
        return 1
    most = min(128, slots, key_blocks)
    usable = [n for n in range(1, most + 1) if n == 1 or -(-key_blocks // n) != -(-key_blocks // (n - 1))]
    use = {n: (blocks * n / slots) / -(-blocks * n // slots) for n in usable}
    return next(n for n in usable if use[n] >= 0.85 * max(use.values()))


@rule("_scaled_dot_product_flash_attention_backward")
def _flash_backward(call: KernelCall) -> Any:
    """Gradients, row sums, an fp32 accumulator of dq; with grouped heads dk and dv for every query head.

    mha_bwd in flash_attn/flash_api.cpp; queries are rounded up to 128.
    """
    result = call.outputs(call.result())
    query, key = call.args[1], call.args[2]
    batch, heads, length, width = query.shape
    rounded = batch * heads * (-(-length // 128) * 128)
    sizes = [4 * rounded, 4 * rounded * _rounded_width(width)]
    if key.shape[1] != heads:
        sizes += [batch * heads * key.shape[2] * width * query.element_size()] * 2
    call.recorder.scratch(*sizes)
    return result


@rule("_scaled_dot_product_efficient_attention")
def _efficient_forward(call: KernelCall) -> Any:
    """Output and log-sum-exp; seed and offset of the random numbers stay on the host."""
    result = call.result()
    call.recorder.watch(result[0])
    call.recorder.watch(result[1])
    return result


@rule("_scaled_dot_product_efficient_attention_backward")
def _efficient_backward(call: KernelCall) -> Any:
    """Gradients, then the row sums of output x gradient, then the kernel's workspace.

    fp32 kernels get the row sums from tensor ops, 16-bit ones make them themselves (kKernelComputesDelta).
    """
    result = call.outputs(call.result())
    recorder = call.recorder
    gradient, query, key, value = call.args[:4]
    batch, heads, length, _ = query.shape
    rows = batch * heads * length
    if query.element_size() == 4:
        product = recorder.allocate(4 * gradient.numel())
        sums = recorder.allocate(4 * rows)
        delta = recorder.allocate(4 * rows)
        recorder.free(sums)
        recorder.free(product)
    else:
        delta = recorder.allocate(4 * rows)
    drops = bool(call.argument(9, "dropout_p", 0.0))
    workspace = batch * heads * _workspace_elements(call.traits.capability, query, key, value, drops)
    recorder.scratch(4 * workspace)
    recorder.free(delta)
    return result


_LARGE_BLOCKS = 160
"""KiB of shared memory that a block of 128 queries needs beyond 64 dimensions."""


def _shared_memory_kib(capability: tuple[int, int]) -> int:
    """What one block of threads may have (gemm_kernel_utils.h, getMaximumSharedMemoryPerBlockKb)."""
    if capability < (8, 0):
        return 64
    return 99 if capability in ((8, 6), (8, 9)) or capability[0] == 12 else 163


def _workspace_elements(
    capability: tuple[int, int], query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, drops: bool
) -> int:
    """fp32 words of workspace for each batch and head, in mem_eff_attention/kernel_backward.h.

    The gradient of q is summed in tiles, each with a lock, a counter and padding (GradQTempStorage). Where 16-bit
    gradients of k and v do not fit in registers, they are summed there too: beyond 128 dimensions, or beyond 64
    where shared memory is small. The blocks' sizes are those of kernels/generate_kernels.py.
    """
    batch, heads, length, width = query.shape
    keys, value_width = key.shape[-2], value.shape[-1]
    most = max(width, value_width)
    is_half = query.element_size() == 2
    block_rows, block_keys, in_registers = 64, 64, most <= 64
    if is_half and 64 < most <= 96 and capability in ((8, 6), (8, 9)) and not drops:
        block_rows, in_registers = 128, True
    elif most > 64 and (_shared_memory_kib(capability) >= _LARGE_BLOCKS or (is_half and most > 128)):
        block_rows, in_registers = 128, most <= 128
        block_keys = 128 if is_half and most <= 128 else 64
    tiles = -(-length // block_rows) * -(-width // block_keys)
    elements = tiles * (block_rows * block_keys + 4)
    if is_half and not in_registers:
        splits = max(1, min(-(-keys // block_keys), 200 // (batch * heads)))
        for size in (width, value_width):
            elements += splits * block_keys * (-(-size // block_rows) * block_rows)
    return elements
