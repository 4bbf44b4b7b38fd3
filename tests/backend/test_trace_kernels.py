"""What single ops allocate on an H200, read off recorded runs of models that use them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from trainmem_backend.trace.gpu import gpu_traits  # noqa: E402
from trainmem_backend.trace.session import tracing  # noqa: E402

pytestmark = pytest.mark.torch

ROWS, WIDTH = 32, 64
Events = list[int]


def recorded(make: Callable[[], object], run: Callable[..., object]) -> tuple[Events, int]:
    """The events of ``run`` on what ``make`` answers, and the number of the first allocation among them."""
    with tracing(gpu_traits("h200")) as session:
        made = make()
        recording = session.recorder.recording
        start, before = len(recording.events), len(recording.bucket_of)
        kept = run(made)
        events = recording.events[start:]
        del kept, made
    return events, before


def half(*shape: int, grad: bool = False) -> torch.Tensor:
    return torch.zeros(shape, device="cuda", dtype=torch.bfloat16, requires_grad=grad)


def test_rms_norm_is_one_kernel_that_keeps_a_number_a_row() -> None:
    norm = lambda x: torch.nn.functional.rms_norm(x, (WIDTH,))  # noqa: E731
    events, _ = recorded(lambda: half(ROWS, WIDTH, grad=True), norm)
    assert events == [2 * ROWS * WIDTH, 4 * ROWS]


def test_a_mixed_rms_norm_is_computed_in_steps() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        weight = torch.ones(WIDTH, device="cuda")
        return torch.nn.functional.rms_norm(x, (WIDTH,), weight)

    events, _ = recorded(lambda: half(ROWS, WIDTH), run)
    assert events[:2] == [4 * WIDTH, 4 * ROWS * WIDTH]


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_a_norm_of_rows_copies_what_is_not_in_one_piece(norm: str) -> None:
    apply = getattr(torch.nn.functional, norm)
    whole = 2 * ROWS * WIDTH
    events, first = recorded(lambda: half(ROWS, 3, WIDTH)[:, 1], lambda x: apply(x, (WIDTH,)))
    assert events[:2] == [whole, whole]
    assert ~first in events


def test_a_softmax_copies_what_is_not_in_one_piece() -> None:
    whole = 2 * ROWS * WIDTH
    events, first = recorded(lambda: half(WIDTH, ROWS).t(), lambda x: torch.softmax(x, -1))
    assert events == [whole, whole, ~first]


def test_a_list_of_places_becomes_a_tensor_that_autograd_keeps() -> None:
    events, first = recorded(lambda: half(ROWS, WIDTH, grad=True), lambda x: x[[0, 5, 7]])
    assert events == [3 * 8, 3 * WIDTH * 2]
    assert ~first not in events


def test_a_convolution_over_rows_copies_what_is_not_in_one_piece() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv1d(x, half(WIDTH, 1, 4), groups=WIDTH)

    events, first = recorded(lambda: half(1, ROWS, WIDTH).transpose(1, 2), run)
    kernel, copy, output, freed = events[:4]
    assert (kernel, copy, output) == (2 * WIDTH * 4, 2 * ROWS * WIDTH, 2 * WIDTH * (ROWS - 3))
    assert freed == ~(first + 1)


def test_a_running_sum_copies_what_is_not_in_one_piece() -> None:
    whole = 4 * ROWS * WIDTH
    make = lambda: torch.zeros(WIDTH, ROWS, device="cuda").t()  # noqa: E731
    events, first = recorded(make, lambda x: x.cumsum(0))
    assert events == [whole, whole, ~(first + 1)]


def test_normal_is_on_the_host_unless_told_otherwise() -> None:
    events, _ = recorded(lambda: None, lambda _: torch.normal(0.0, 1.0, size=(ROWS,)))
    assert events == []
    events, _ = recorded(lambda: None, lambda _: torch.normal(0.0, 1.0, size=(ROWS,), device="cuda"))
    assert events == [4 * ROWS]


def test_a_tensor_on_the_meta_device_takes_no_memory() -> None:
    events, _ = recorded(lambda: None, lambda _: torch.empty(1 << 40, device="meta") + 1)
    assert events == []


@pytest.mark.parametrize("trains", [True, False])
def test_cudnn_attention_makes_a_log_sum_exp_where_a_gradient_is_wanted(trains: bool) -> None:
    attend = torch.nn.functional.scaled_dot_product_attention
    events, _ = recorded(lambda: half(2, 4, ROWS, WIDTH, grad=trains), lambda x: attend(x, x, x))
    rows = 2 * 4 * ROWS
    made = [event for event in events if event > 0]
    assert made == [8, 8, 2 * rows * WIDTH, *([4 * rows] if trains else []), 256]


@pytest.mark.parametrize(
    ("length", "stride", "copied_row"),
    [(24, 24, None), (20, 20, 24), (20, 24, None), (24, 28, 32)],
    ids=["even", "uneven", "filled up before", "rows of an uneven tensor"],
)
def test_efficient_attention_fills_up_the_rows_of_a_bias(
    length: int, stride: int, copied_row: int | None
) -> None:
    """To whole 8 elements, where its strides are not."""

    def make() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(1, 2, length, 16, device="cuda"), torch.zeros(1, 1, length, stride, device="cuda")

    def run(made: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        query, bias = made
        return torch.nn.functional.scaled_dot_product_attention(query, query, query, bias[..., :length])

    events, _ = recorded(make, run)
    copy = [] if copied_row is None else [4 * length * copied_row]
    assert [event for event in events if event > 8][: len(copy) + 1] == [*copy, 4 * 2 * length * 16]
