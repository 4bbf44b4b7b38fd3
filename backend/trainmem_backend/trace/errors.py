"""What a trace raises."""

from __future__ import annotations

__all__ = ["TraceError"]


class TraceError(RuntimeError):
    """A trace that cannot be made; the message says why in one line."""
