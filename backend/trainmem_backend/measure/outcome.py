"""The many faces of running out of memory, and what an exit code says."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from trainmem.results import Outcome

__all__ = ["Ending", "of_exception", "of_exit"]

_OUT_OF_MEMORY = re.compile(
    r"out of memory"
    r"|CUBLAS_STATUS_ALLOC_FAILED"
    r"|CUDNN_STATUS_ALLOC_FAILED"
    r"|NVML_SUCCESS == r INTERNAL ASSERT FAILED"
    r"|cudaErrorMemoryAllocation",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """How a trial ended, and the sentence that goes into its row."""

    outcome: Outcome
    reason: str


def of_exception(kind: str, message: str) -> Ending:
    """An exception by its class name and text.

    PyTorch raises ``OutOfMemoryError`` from its allocator, ``AcceleratorError`` or ``RuntimeError``
    where a CUDA call failed outside it, and a failed NVML assertion where composing the message failed.
    """
    text = " ".join(message.split())[:600]
    if kind == "OutOfMemoryError" or _OUT_OF_MEMORY.search(message):
        return Ending(outcome="oom", reason=f"{kind}: {text}")
    return Ending(outcome="error", reason=f"{kind}: {text}")


def of_exit(code: int, stderr: str = "") -> Ending:
    """A child that ended without an answer.

    A kill is only a kill: the kernel's out-of-memory killer, a container's limit and a person look alike.
    """
    last = next((line.strip() for line in reversed(stderr.splitlines()) if line.strip()), "")
    said = f"; last words: {last[:300]}" if last else ""
    number = -code if code < 0 else code - 128 if code > 128 else 0
    if number == signal.SIGKILL:
        return Ending(outcome="killed", reason=f"killed (exit {code}), cause unknown{said}")
    if number:
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        return Ending(outcome="killed", reason=f"ended by {name}{said}")
    if _OUT_OF_MEMORY.search(stderr):
        return Ending(outcome="oom", reason=f"exit {code}{said}")
    return Ending(outcome="error", reason=f"exit {code} without a result{said}")
