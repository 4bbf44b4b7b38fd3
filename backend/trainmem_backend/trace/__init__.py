"""The real model's training step, replayed with no GPU: what a CUDA device would allocate, in order."""

# ruff: noqa: E402  (a missing hook point is said in a line before an import stumbles over it)

from trainmem_backend.trace.errors import TraceError
from trainmem_backend.trace.hook_points import require_hook_points, versions

require_hook_points()

from trainmem_backend.trace.job import trace
from trainmem_backend.trace.program import trace_program, trace_script, trace_step

__all__ = ["TraceError", "trace", "trace_program", "trace_script", "trace_step", "versions"]
