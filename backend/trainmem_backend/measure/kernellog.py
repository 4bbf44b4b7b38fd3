"""The driver's complaints in the kernel log, as information and never as a verdict.

Runs that end well log ``NV_ERR_NO_MEMORY`` too, and runs that fail may log none.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable

from trainmem_backend.measure.nvml import Reading

__all__ = ["count_complaints"]

_COMPLAINT = "NV_ERR_NO_MEMORY"


def _dmesg() -> str:
    return subprocess.run(["dmesg"], capture_output=True, text=True, timeout=5, check=True).stdout


def count_complaints(read: Callable[[], str] = _dmesg) -> Reading:
    """How many lines there are by now, or why that cannot be known."""
    try:
        return Reading(value=sum(_COMPLAINT in line for line in read().splitlines()))
    except (OSError, subprocess.SubprocessError) as error:
        return Reading(reason=f"dmesg: {' '.join(str(error).split())[:200]}")
