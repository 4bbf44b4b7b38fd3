"""Limits that the process puts on itself before it looks at the file."""

from __future__ import annotations

import gc
from typing import Any

try:
    import resource
except ImportError:  # not a POSIX system: the parent's clock and output cap remain
    resource = None  # type: ignore[assignment]

__all__ = ["confine", "lower_memory", "shut_descriptors"]

_MIB = 1 << 20
_BASE_BYTES = 256 * _MIB
_BYTES_PER_INPUT_BYTE = 12
"""A real snapshot needs 5 to 6 bytes of memory for each byte of pickle while it is read."""


def confine(most_input_bytes: int) -> None:
    """Cap memory and processor time for a file of at most ``most_input_bytes``, forbid files and processes."""
    # The collector would visit a million dictionaries again and again, and none of them is garbage.
    gc.disable()
    if resource is None:
        return
    lower_memory(most_input_bytes)
    for name, most in (("RLIMIT_CORE", 0), ("RLIMIT_FSIZE", 0), ("RLIMIT_NPROC", 0)):
        _lower(name, most)


def lower_memory(input_bytes: int) -> None:
    """Tighten the caps once the size of the input is known: 256 MiB and 12 bytes a byte, 4 s and 1 s a 10 MB."""
    _lower("RLIMIT_AS", _BASE_BYTES + _BYTES_PER_INPUT_BYTE * input_bytes)
    _lower("RLIMIT_CPU", 4 + input_bytes // 10_000_000)


def shut_descriptors() -> None:
    """From here on nothing can be opened: no file, no socket. What is open stays open."""
    _lower("RLIMIT_NOFILE", 0)


def _lower(name: str, most: int) -> None:
    kind: Any = getattr(resource, name, None)
    if resource is None or kind is None:
        return
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    try:
        resource.setrlimit(kind, (most, most))
    except (ValueError, OSError):  # macOS refuses some of them
        return
