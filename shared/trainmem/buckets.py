"""The ten things that fill the memory, in the one order used everywhere."""

from __future__ import annotations

from typing import Literal, get_args

__all__ = ["BUCKETS", "BUCKET_MEANINGS", "Bucket"]

Bucket = Literal[
    "weights",
    "master_weights",
    "gradients",
    "optimizer_state",
    "cast_cache",
    "activations",
    "logits",
    "communication",
    "temporaries",
    "workspace",
]

BUCKETS: tuple[Bucket, ...] = get_args(Bucket)

BUCKET_MEANINGS: dict[Bucket, str] = {
    "weights": "the parameters and buffers that the model computes with",
    "master_weights": "fp32 copies of the parameters that the optimizer updates",
    "gradients": "one gradient for each trainable parameter",
    "optimizer_state": "what the optimizer keeps between steps: Adam's two moments, momentum, scales",
    "cast_cache": "16-bit copies of fp32 weights that autocast keeps for forward and backward",
    "activations": "what the forward pass saves for backward, checkpoints included",
    "logits": "the scores over the vocabulary, their fp32 copy, the loss and their gradients",
    "communication": "gathered weights, gradient buckets and other buffers of collectives",
    "temporaries": "what an operation allocates and frees again, and gradients of activations",
    "workspace": "scratch memory that cuBLAS and other libraries hold between operations",
}
