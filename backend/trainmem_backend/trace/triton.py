"""Kernels written in Triton, which need a GPU's driver even to be compiled."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager

from trainmem_backend.trace.stand_ins import stand_ins

__all__ = ["load_triton", "unlaunched_kernels"]

_LAUNCHES = (("triton.runtime.jit", "JITFunction.run"), ("triton.runtime.autotuner", "Autotuner.run"))
_BRINGERS = ("triton", "trl")


def load_triton() -> None:
    """Import it before a virtual GPU is in place where a library of the program's launches its kernels later on."""
    if any(name in sys.modules for name in _BRINGERS):
        for module, _ in _LAUNCHES:
            with contextlib.suppress(ImportError):
                importlib.import_module(module)


def unlaunched_kernels(note: Callable[[str], None]) -> AbstractContextManager[None]:
    """Inside, a launch does nothing: a kernel writes into tensors that its caller made, and makes none itself.

    ``note`` is told that none ran.
    """

    def launch(*_: object, **__: object) -> None:
        note("Triton: no kernel ran; what they write into was made by the program and is counted")

    return stand_ins((module, path, launch) for module, path in _LAUNCHES)
