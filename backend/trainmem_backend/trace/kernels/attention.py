"""Fused attention kernels: what each keeps and takes on the way."""

from __future__ import annotations

from typing import Any

from trainmem_backend.trace.kernels.registry import KernelCall, rule

__all__: list[str] = []


@rule("_scaled_dot_product_cudnn_attention")
def _cudnn_forward(call: KernelCall) -> Any:
    """Seed and offset of the random numbers, output, log-sum-exp, and a workspace of 256 bytes."""
    result = call.result()
    recorder = call.recorder
    output, log_sum_exp = result[0], result[1]
    for tensor in (result[6], result[7]):
        recorder.watch(tensor)
    recorder.watch(output)
    if log_sum_exp is not None:
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


@rule("_scaled_dot_product_efficient_attention")
def _efficient_forward(call: KernelCall) -> Any:
    """Output and log-sum-exp; seed and offset of the random numbers stay on the host."""
    result = call.result()
    call.recorder.watch(result[0])
    call.recorder.watch(result[1])
    return result


@rule("_scaled_dot_product_efficient_attention_backward")
def _efficient_backward(call: KernelCall) -> Any:
    """Gradients, then the row sums of output x gradient in fp32, then the workspace of the gradient of q.

    The workspace holds fp32 tiles of 64 x 64, each with a lock, a counter and padding (GradQTempStorage in
    mem_eff_attention/kernel_backward.h).
    """
    result = call.outputs(call.result())
    recorder = call.recorder
    gradient, query, output = call.args[0], call.args[1], call.args[5]
    batch, heads, length, width = query.shape
    rows = batch * heads * length
    casts = []
    if gradient.element_size() != 4:
        casts = [recorder.allocate(4 * t.numel()) for t in (gradient, output)]
    product = recorder.allocate(4 * gradient.numel())
    sums = recorder.allocate(4 * rows)
    delta = recorder.allocate(4 * rows)
    for number in (sums, product, *reversed(casts)):
        recorder.free(number)
    tiles = -(-length // 64) * -(-width // 64)
    workspace = recorder.allocate(batch * heads * tiles * (64 * 64 + 4) * 4)
    recorder.free(workspace)
    recorder.free(delta)
    return result
