"""What a trace answers where a program asks for values: exact ones where no data decides them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from trainmem_backend.trace.gpu import gpu_traits
from trainmem_backend.trace.session import TraceSession, tracing

pytestmark = pytest.mark.torch


@pytest.fixture
def session() -> Iterator[TraceSession]:
    with tracing(gpu_traits("h200")) as session:
        yield session


@pytest.mark.usefixtures("session")
def test_what_follows_from_positions_is_exact() -> None:
    position = torch.arange(12, device="cuda")
    assert (position[-1] - position[3]).item() == 8
    assert position.view(3, 4)[1].tolist() == [4, 5, 6, 7]
    assert position.flip(0)[::5].numpy().tolist() == [11, 6, 1]
    assert torch.arange(position[2], position[8], 2, device="cuda").shape == (3,)
    assert bool((position < 12).all())
    assert not bool((position > 11).any())
    assert (position % 3 == 0).nonzero().shape == (4, 1)
    assert position[position > 7].shape == (4,)
    assert position.cumsum(0)[-1].item() == 66
    assert position.to(torch.float32).mean().item() == 5.5


@pytest.mark.usefixtures("session")
def test_what_the_program_brings_along_is_exact() -> None:
    lengths = torch.tensor([3, 5]).cuda()
    hidden = torch.ones(2, 8, 4, device="cuda")
    assert hidden[:, : lengths.max()].shape == (2, 5, 4)
    assert [part.shape[0] for part in torch.ones(8, device="cuda").split(lengths.tolist())] == [3, 5]


@pytest.mark.usefixtures("session")
def test_writing_in_place_is_followed_until_it_is_with_something_unknown() -> None:
    mask = torch.zeros_like(torch.randint(0, 9, (2, 6), device="cuda"))
    mask[:, 0] = 1
    assert mask.sum().item() == 2
    mask[1].add_(3)
    assert mask.tolist() == [[1, 0, 0, 0, 0, 0], [4, 3, 3, 3, 3, 3]]
    torch._foreach_add_([mask], [mask])
    assert mask[1].max().item() == 8
    mask.copy_(torch.randint(0, 9, (2, 6), device="cuda"))
    # an integer that is not known is one
    assert mask.tolist() == [[1] * 6] * 2


def test_random_and_unwritten_values_are_not_known(session: TraceSession) -> None:
    known = session.record_mode.answers.exact
    for tensor in (
        torch.randint(0, 9, (4,), device="cuda"),
        torch.empty(4, dtype=torch.int64, device="cuda"),
        torch.ones(4, device="cuda").bernoulli_(),
        torch.ones(1 << 15, device="cuda"),
        torch.ones(4, device="cuda") + torch.rand(4, device="cuda"),
    ):
        assert known.of(tensor) is None


@pytest.mark.usefixtures("session")
def test_a_tensor_of_another_size_or_dtype_is_not_what_it_was() -> None:
    place = torch.zeros(0, dtype=torch.int64, device="cuda")
    torch.add(torch.arange(3, device="cuda"), 1, out=place)
    assert place.shape == (3,)
    assert place.tolist() == [1, 1, 1]
    assert torch.arange(4, dtype=torch.int32, device="cuda").view(torch.int16).tolist() == [1] * 8


def test_copies_go_with_their_tensors(session: TraceSession) -> None:
    known = session.record_mode.answers.exact
    for number in range(2000):
        assert torch.full((3,), number, device="cuda").sum().item() == 3 * number
    assert len(known._copies) < 1000


def test_counts_of_what_is_routed_add_up_and_are_counted_as_made_up(session: TraceSession) -> None:
    answers = session.record_mode.answers
    routed = torch.rand(10, 4, device="cuda").topk(2).indices.flatten()
    counts = torch.bincount(routed, minlength=4)
    ends = torch.cat([torch.zeros(1, dtype=torch.int64, device="cuda"), counts.cumsum(0)])
    assert answers.asked == 0
    assert ends.tolist() == [0, 5, 10, 15, 20]
    made_up = answers.asked
    assert made_up > 0
    tokens = torch.ones(20, 8, device="cuda")
    assert [tokens[ends[expert] : ends[expert + 1]].shape[0] for expert in range(4)] == [5, 5, 5, 5]
    assert answers.asked == made_up + 8
    assert torch.arange(3, device="cuda").tolist() == [0, 1, 2]
    assert answers.asked == made_up + 8


def test_numbers_alone_make_host_tensors(session: TraceSession) -> None:
    """`torch.div(7, 2)` is no work for the GPU, wherever the result goes."""
    chunks = torch.div(32, 16, rounding_mode="trunc")
    assert chunks.item() == 2
    assert chunks.device.type == "cpu"
    assert not session.recorder.is_device(chunks)
    assert torch.ones(8, 32, device="cuda").view(8, chunks, 16).shape == (8, 2, 16)


@pytest.mark.usefixtures("session")
def test_a_kernel_that_the_host_lacks_leaves_values_unknown() -> None:
    query = torch.ones(1, 2, 16, 64, dtype=torch.bfloat16, device="cuda")
    attended = torch.nn.functional.scaled_dot_product_attention(query, query, query)
    assert attended.shape == query.shape
    assert attended.sum().item() == 1.0
