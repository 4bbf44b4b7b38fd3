"""`DistributedDataParallel` on a virtual GPU: it refuses what the real one refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_models import small_job

from trainmem.recording import StepFigures, counters, read_step
from trainmem_backend.trace import TraceError, trace, trace_step

pytestmark = pytest.mark.torch


class PartlyUsed(torch.nn.Module):
    """One of its layers never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.used = torch.nn.Linear(256, 256)
        self.unused = torch.nn.Linear(256, 256)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.used(inputs)


def figures(model: type[torch.nn.Module], *, micro_batches: int = 1, **options: Any) -> StepFigures:
    def build() -> Any:
        torch.distributed.init_process_group("nccl", rank=0, world_size=2)
        wrapped = torch.nn.parallel.DistributedDataParallel(model().cuda(), **options)
        return wrapped, torch.optim.SGD(wrapped.parameters())

    def step(state: Any) -> None:
        wrapped, optimizer = state
        for _ in range(micro_batches - 1):
            with wrapped.no_sync():
                wrapped(torch.ones(8, 256, device="cuda")).sum().backward()
        wrapped(torch.ones(8, 256, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    recording = trace_step(build, step, steps=3)
    return read_step(recording, counters(recording), 3)


def test_a_parameter_without_a_gradient_must_be_asked_for() -> None:
    with pytest.raises(RuntimeError, match="2 of 4 parameters had no gradient"):
        figures(PartlyUsed)
    # one bucket, which closes only when it holds a MiB, with room for all gradients that may come
    room = 2 * 4 * (256 * 256 + 256)
    buckets = figures(PartlyUsed, find_unused_parameters=True).buckets_at_peak
    assert buckets["communication"] == pytest.approx(room, abs=512)


def test_a_model_with_unused_parameters_is_one_line() -> None:
    job = small_job("big_bird", precision="bf16", sharding={"mode": "ddp", "data_parallel": 2})
    with pytest.raises(TraceError, match="Expected to have finished reduction") as failure:
        trace(job)
    assert "\n" not in str(failure.value)


def test_micro_batches_that_are_not_sent_take_no_memory_of_their_own() -> None:
    class Layer(torch.nn.Linear):
        def __init__(self) -> None:
            super().__init__(256, 256)

    two, three = (figures(Layer, micro_batches=count).peak_allocated_bytes for count in (2, 3))
    assert two == three


class Square(torch.nn.Linear):
    """One parameter of 4 MiB."""

    def __init__(self) -> None:
        super().__init__(1024, 1024, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs.repeat(1, 4))


SQUARE_BYTES = 4 * 1024 * 1024


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_gradients_that_are_views_of_their_buckets_are_held_once(micro_batches: int) -> None:
    copied, viewed = (
        figures(Square, micro_batches=micro_batches, gradient_as_bucket_view=views) for views in (False, True)
    )
    held = {name: copied.phases[name] - viewed.phases[name] for name in copied.phases}
    assert held["after_backward_bytes"] == held["after_optimizer_bytes"] == SQUARE_BYTES
    # a micro batch that is not sent leaves its gradient beside the bucket
    assert held["after_forward_bytes"] == held["start_bytes"] == 0


def test_buckets_are_made_anew_only_once_gradients_were_sent() -> None:
    class Layers(torch.nn.Sequential):
        def __init__(self) -> None:
            super().__init__(torch.nn.Linear(256, 1024, bias=False), torch.nn.Linear(1024, 1024, bias=False))

    def build() -> Any:
        torch.distributed.init_process_group("nccl", rank=0, world_size=2)
        wrapped = torch.nn.parallel.DistributedDataParallel(Layers().cuda(), bucket_cap_mb=1)
        return wrapped, torch.optim.SGD(wrapped.parameters())

    def accumulate(state: Any) -> None:
        wrapped, optimizer = state
        with wrapped.no_sync():
            for _ in range(2):
                wrapped(torch.ones(8, 256, device="cuda")).sum().backward()
        wrapped(torch.ones(8, 256, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    recording = trace_step(build, accumulate, steps=2)
    second = min(mark.event for mark in recording.marks if mark.step == 2)
    parameter, gradients, bucket = 1, 3, 1
    assert recording.events[:second].count(SQUARE_BYTES) == parameter + gradients
    assert recording.events[second:].count(SQUARE_BYTES) == bucket + gradients


def test_a_model_that_may_miss_gradients_copies_what_it_returns() -> None:
    peaks = [
        figures(Square, find_unused_parameters=unused).phases["peak_forward_bytes"]
        for unused in (False, True)
    ]
    map_of_used_parameters = 512
    assert peaks[1] - peaks[0] == 8 * 1024 * 4 + map_of_used_parameters
