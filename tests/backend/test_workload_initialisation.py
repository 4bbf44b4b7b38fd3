"""Random weights are drawn in place, whatever the torch."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.torch


def test_truncated_normal_weights_are_drawn_in_place() -> None:
    from transformers import initialization

    from trainmem_backend.workload.initialisation import drawn_in_place

    weight = torch.empty(40_000)
    address = weight.data_ptr()
    with drawn_in_place():
        drawn = initialization.trunc_normal_(weight, mean=1.0, std=0.5, a=0.0, b=1.5)
    assert drawn is weight
    assert weight.data_ptr() == address
    assert 0.0 <= weight.min() < 0.01
    assert 1.49 < weight.max() <= 1.5
    # of a normal cut at -2 and 1 deviations
    assert weight.mean().item() == pytest.approx(1.0 - 0.5 * 0.2296, abs=0.01)
    assert initialization.TORCH_INIT_FUNCTIONS["trunc_normal_"] is torch.nn.init.trunc_normal_


def test_drawing_makes_nothing_beside_the_weight() -> None:
    from trainmem_backend.trace.gpu import gpu_traits
    from trainmem_backend.trace.session import tracing
    from trainmem_backend.workload.initialisation import drawn_in_place

    with tracing(gpu_traits("h200")) as session, drawn_in_place():
        from transformers import initialization

        weight = torch.empty(300, 40, device="cuda")
        initialization.trunc_normal_(weight, std=0.02, a=-0.06, b=0.06)
        assert session.recorder.recording.events.tolist() == [4 * 300 * 40]
