"""What CUDA kernels allocate, op by op, where that is more than their outputs in order."""

from trainmem_backend.trace.kernels import (
    attention,
    convolution,
    embedding,
    indexing,
    matmul,
    normalization,
    pointwise,
    reductions,
    selection,
    sharding,
)
from trainmem_backend.trace.kernels.registry import KernelCall, rule_for

__all__ = [
    "KernelCall",
    "attention",
    "convolution",
    "embedding",
    "indexing",
    "matmul",
    "normalization",
    "pointwise",
    "reductions",
    "rule_for",
    "selection",
    "sharding",
]
