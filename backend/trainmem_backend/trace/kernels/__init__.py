"""What CUDA kernels allocate, op by op, where that is more than their outputs in order."""

from trainmem_backend.trace.kernels import (
    attention,
    convolution,
    ctc,
    embedding,
    indexing,
    matmul,
    normalization,
    packing,
    pointwise,
    recurrent,
    reductions,
    selection,
    sharding,
)
from trainmem_backend.trace.kernels.registry import KernelCall, rule_for

__all__ = [
    "KernelCall",
    "attention",
    "convolution",
    "ctc",
    "embedding",
    "indexing",
    "matmul",
    "normalization",
    "packing",
    "pointwise",
    "recurrent",
    "reductions",
    "rule_for",
    "selection",
    "sharding",
]
