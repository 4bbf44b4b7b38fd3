"""The real model's training step, replayed on fake tensors with no GPU."""

from trainmem_backend.trace.job import trace

__all__ = ["trace"]
