"""Dtypes and bytes read from live tensors, because flags say what was asked for and not what is there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch

__all__ = ["gradient_dtypes", "live_dtypes", "optimizer_state_bytes"]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _by_dtype(tensors: Iterable[torch.Tensor]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for tensor in tensors:
        local = getattr(tensor, "_local_tensor", tensor)
        found[_name(local.dtype)] += local.nbytes
    return dict(found)


def gradient_dtypes(workload: Any) -> dict[str, int]:
    """Bytes of gradients by dtype, as they are just before the optimizer's step."""
    holders = [*workload.model.parameters(), *_masters(workload)]
    return _by_dtype(p.grad for p in holders if p.grad is not None)


def _masters(workload: Any) -> list[torch.Tensor]:
    masters = getattr(workload, "masters", None)
    return list(masters.parameters) if masters is not None else []


def live_dtypes(workload: Any, gradients: dict[str, int]) -> dict[str, Any]:
    """Bytes by dtype of parameters, buffers, gradients, master weights and optimizer state; autocast's
    dtype."""
    found: dict[str, Any] = {
        "parameters": _by_dtype(workload.model.parameters()),
        "buffers": _by_dtype(workload.model.buffers()),
        "gradients": gradients,
        **optimizer_state_bytes(workload.optimizer),
    }
    found["master_weights"] = _by_dtype(_masters(workload))
    with workload.autocast():
        kind = "cuda" if torch.cuda.is_available() else "cpu"
        found["autocast"] = _name(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else None
    return found


def _state_tensors(optimizer: Any) -> Iterator[torch.Tensor]:
    for part in getattr(optimizer, "optimizers", [optimizer]):
        for state in part.state.values():
            for value in state.values():
                if torch.is_tensor(value):
                    yield value


def optimizer_state_bytes(optimizer: Any) -> dict[str, Any]:
    """Optimizer state by dtype, and its bytes that CUDA's counters cannot see.

    A paged optimizer keeps its state in managed memory that torch takes for CPU tensors; on an
    integrated GPU that is the same pool. Counters of step scalars also live on the CPU and are a few
    bytes.
    """
    tensors = list(_state_tensors(optimizer))
    return {
        "optimizer_state": _by_dtype(tensors),
        "optimizer_state_outside_counters_bytes": sum(
            getattr(t, "_local_tensor", t).nbytes for t in tensors if not t.is_cuda
        ),
    }
