"""The one way a file is turned away."""

from __future__ import annotations

__all__ = ["Refusal"]


class Refusal(Exception):
    """Why the file cannot be read, in one line that holds no text of the file."""
