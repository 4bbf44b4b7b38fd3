"""`torch.backends.cudnn` of a GPU, on a build of PyTorch that may have none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from trainmem_backend.trace.kernels.recurrent import MODES

__all__ = ["virtual_cudnn"]

_VERSION = 91002
"""What comes with torch 2.11 for CUDA 13."""
_BENCHMARK_LIMIT = 10


def _functions_of(module: Any) -> Any:
    """The module itself, behind the one that makes properties of its settings."""
    return getattr(module, "m", module)


@contextlib.contextmanager
def virtual_cudnn() -> Iterator[None]:
    """cuDNN is there inside, and accepts what it accepts on a GPU."""
    cudnn, rnn = _functions_of(torch.backends.cudnn), _functions_of(torch.backends.cudnn.rnn)
    replacements: list[tuple[Any, str, Any]] = [
        (torch, "_use_cudnn_rnn_flatten_weight", lambda: True),
        (rnn, "_cudnn", SimpleNamespace(RNNMode=SimpleNamespace(**MODES))),
        (cudnn, "_init", lambda: True),
        (cudnn, "version", lambda: _VERSION),
        (cudnn, "is_available", lambda: True),
        (torch._C, "_cuda_get_cudnn_benchmark_limit", lambda: _BENCHMARK_LIMIT),
        (torch._C, "_cuda_set_cudnn_benchmark_limit", lambda limit: None),
    ]
    with contextlib.ExitStack() as stack:
        for owner, name, value in replacements:
            # create: what only builds for CUDA have
            stack.enter_context(mock.patch.object(owner, name, value, create=True))
        yield
