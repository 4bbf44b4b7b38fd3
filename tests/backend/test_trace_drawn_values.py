"""Random weights that are drawn again until all are within bounds are drawn as often in a trace as in fact."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trainmem_backend.trace.gpu import gpu_traits
from trainmem_backend.trace.session import TraceSession, tracing

pytestmark = pytest.mark.torch

BOUNDS = {"std": 0.02, "a": -0.06, "b": 0.06}
"""Of a million values 2,700 lie outside, of those 7, of those none."""


@pytest.fixture
def session() -> Iterator[TraceSession]:
    with tracing(gpu_traits("h200")) as session:
        yield session


class _Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.redrawn = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.redrawn += func is torch.ops.aten.where.self
        return func(*args, **(kwargs or {}))


def test_truncated_normal_weights_are_drawn_as_often_as_in_fact() -> None:
    torch.manual_seed(1)
    with _Counting() as real:
        torch.nn.init.trunc_normal_(torch.empty(1000, 1000), **BOUNDS)
    with tracing(gpu_traits("h200")) as session:
        torch.nn.init.trunc_normal_(torch.empty(1000, 1000, device="cuda"), **BOUNDS)
        assert session.recorder.recording.op_of.count("where") == real.redrawn


@pytest.mark.usefixtures("session")
def test_shares_of_a_normal_distribution() -> None:
    drawn = torch.empty(1000, 20, device="cuda").normal_(1.0, 2.0)
    assert (drawn < 1.0).sum().item() == 10_000
    assert (drawn > 3.0).sum().item() == 3173
    assert bool((drawn > 3.0).any())
    assert not bool(((drawn < -50.0) | (drawn > 50.0)).any())
    outside = (drawn < -1.0) | (drawn > 3.0)
    assert outside.sum().item() == 2 * 3173
    again = torch.where(outside, torch.empty_like(drawn).normal_(1.0, 2.0), drawn)
    assert (again > 3.0).sum().item() == round(2 * 3173 * 0.158655)


@pytest.mark.usefixtures("session")
def test_what_is_written_over_is_no_longer_drawn() -> None:
    weight = torch.empty(200, 100, device="cuda").normal_()
    assert (weight < 0.0).sum().item() == 10_000
    weight.mul_(3.0)
    assert (weight < 0.0).sum().item() == 20_000
