"""What single ops allocate on an H200, read off recorded runs of models that use them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from trainmem.recording import counters  # noqa: E402
from trainmem_backend.trace.gpu import gpu_traits  # noqa: E402
from trainmem_backend.trace.program import trace_script  # noqa: E402
from trainmem_backend.trace.session import tracing  # noqa: E402

pytestmark = pytest.mark.torch

SCRIPTS = Path(__file__).parents[1] / "data" / "scripts"
ROWS, WIDTH = 32, 64
Events = list[int]


def recorded(make: Callable[[], object], run: Callable[..., object]) -> tuple[Events, int]:
    """The events of ``run`` on what ``make`` answers, and the number of the first allocation among them."""
    with tracing(gpu_traits("h200")) as session:
        made = make()
        recording = session.recorder.recording
        start, before = len(recording.events), len(recording.bucket_of)
        kept = run(made)
        events = list(recording.events[start:])
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


def test_group_norm_knows_no_channels_last() -> None:
    """Its input is copied, kept so, and its output is contiguous, whatever the input is."""
    shape = (2, 8, 4, 4)
    whole = 2 * torch.Size(shape).numel()

    def make() -> torch.Tensor:
        return half(*shape).to(memory_format=torch.channels_last).requires_grad_()

    def run(x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.group_norm(x, 4)
        assert y.is_contiguous()
        return y

    events, first = recorded(make, run)
    # copy, output, two statistics in bf16; meanwhile the statistics in fp32, a scale and a shift for every channel
    assert [event for event in events if event > 0] == [whole, whole, 16, 16, 32, 32, 64, 64]
    assert ~first not in events


def test_a_convolution_follows_weights_into_channels_last_and_copies_what_does_not() -> None:
    def contiguous_and_not(weight_is_last: bool) -> tuple[Events, int, bool]:
        layouts = (torch.contiguous_format, torch.channels_last)
        of_values, of_weight = layouts if weight_is_last else layouts[::-1]

        def make() -> tuple[torch.Tensor, torch.Tensor]:
            return half(2, 8, 6, 6).to(memory_format=of_values), half(16, 8, 3, 3).to(memory_format=of_weight)

        result = []

        def run(made: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            output = torch.nn.functional.conv2d(*made)
            result.append(output.is_contiguous(memory_format=torch.channels_last))
            return output

        events, first = recorded(make, run)
        return events, first, result[0]

    values, output, weight = 2 * 2 * 8 * 36, 2 * 2 * 16 * 16, 2 * 16 * 8 * 9
    events, first, is_last = contiguous_and_not(weight_is_last=True)
    assert (events, is_last) == ([values, output, ~first], True)
    events, first, is_last = contiguous_and_not(weight_is_last=False)
    assert (events, is_last) == ([output, weight, ~(first + 1)], True)


def test_the_gradients_of_a_convolution_copy_what_is_not_in_its_format() -> None:
    def make() -> tuple[torch.Tensor, ...]:
        weight = half(16, 8, 3, 3, grad=True)
        x = half(2, 8, 6, 6).to(memory_format=torch.channels_last).requires_grad_()
        return x, weight, half(2, 16, 4, 4), torch.nn.functional.conv2d(x, weight)

    def run(made: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        x, weight, gradient, output = made
        of_x, of_weight = torch.autograd.grad(output, (x, weight), gradient)
        assert of_x.is_contiguous(memory_format=torch.channels_last)
        assert of_weight.is_contiguous(memory_format=torch.channels_last)
        return of_x, of_weight

    events, first = recorded(make, run)
    values, gradient, weight = 2 * 2 * 8 * 36, 2 * 2 * 16 * 16, 2 * 16 * 8 * 9
    assert events == [gradient, values, weight, ~(first + 2), weight, ~first]


@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_a_ctc_loss_keeps_a_table_as_wide_as_the_longest_target(where: str) -> None:
    steps, batch, longest = 20, 4, 10

    def run(scores: torch.Tensor) -> torch.Tensor:
        targets = torch.ones(batch, longest, dtype=torch.long, device="cuda")
        lengths = (torch.full((batch,), steps, device=where), torch.full((batch,), longest, device=where))
        return torch.nn.functional.ctc_loss(scores, targets, *lengths, reduction="none")

    make = lambda: torch.zeros(steps, batch, 30, device="cuda", requires_grad=True)  # noqa: E731
    events, _ = recorded(make, run)
    assert 4 * batch * steps * (2 * longest + 1) in events


def _spread(x: torch.Tensor, mode: str) -> torch.Tensor:
    return torch.nn.functional.interpolate(x, scale_factor=2, mode=mode)


FUNCTIONAL = torch.nn.functional
OF_IMAGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "conv1d": lambda x: torch.nn.Conv1d(4, 4, 3).cuda()(x.flatten(2)),
    "conv2d": lambda x: torch.nn.Conv2d(4, 4, 3).cuda()(x),
    "conv3d": lambda x: torch.nn.Conv3d(4, 4, 3, padding=1).cuda()(x.unflatten(3, (4, 2))),
    "transposed": lambda x: torch.nn.ConvTranspose2d(4, 4, 3).cuda()(x),
    "batch norm": lambda x: torch.nn.BatchNorm2d(4).cuda()(x),
    "instance norm": lambda x: torch.nn.InstanceNorm2d(4, affine=True).cuda()(x),
    "group norm": lambda x: torch.nn.GroupNorm(2, 4).cuda()(x),
    "lstm": lambda x: torch.nn.LSTM(8, 8).cuda()(x[0])[0],
    "gru": lambda x: torch.nn.GRU(8, 8, bidirectional=True).cuda()(x[0])[0],
    "lstm cell": lambda x: torch.nn.LSTMCell(8, 8).cuda()(x[0, 0])[0],
    "attention": lambda x: torch.nn.MultiheadAttention(8, 2).cuda()(x[0], x[0], x[0])[0],
    "encoder": lambda x: torch.nn.TransformerEncoderLayer(8, 2, 16).cuda()(x[0]),
    "nearest": lambda x: _spread(x, "nearest"),
    "bilinear": lambda x: _spread(x, "bilinear"),
    "bicubic": lambda x: _spread(x, "bicubic"),
    "grid sample": lambda x: FUNCTIONAL.grid_sample(x, x[:, :2].permute(0, 2, 3, 1), align_corners=False),
    "max pool": lambda x: FUNCTIONAL.max_pool2d(x, 2),
    "average pool": lambda x: FUNCTIONAL.adaptive_avg_pool2d(x, 2),
    "embedding bag": lambda x: (
        torch.nn.EmbeddingBag(9, 4).cuda()(torch.zeros(2, 3, dtype=torch.long, device="cuda")) * x.mean()
    ),
}


@pytest.mark.parametrize("autocast", [False, True])
def test_no_layer_takes_the_cpu_s_way(autocast: bool) -> None:
    """On the host PyTorch has kernels of other libraries, with other memory, for many layers."""
    ops: dict[str, set[str]] = {}
    with tracing(gpu_traits("h200")) as session:
        for name, layer in OF_IMAGES.items():
            before = len(session.recorder.recording.op_of)
            x = torch.zeros(2, 4, 8, 8, device="cuda", requires_grad=True)
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast):
                result = layer(x)
            result.float().sum().backward()
            ops[name] = set(session.recorder.recording.op_of[before:])
    libraries = ("mkl", "onednn", "cpu")
    assert {name: [op for op in of if any(word in op for word in libraries)] for name, of in ops.items()} == {
        name: [] for name in OF_IMAGES
    }


def test_an_autoencoder_takes_what_it_took_on_an_h200() -> None:
    """In bf16, half of it channels-last; the peak lacks the last convolution's workspace, which cuDNN chose."""
    recording = trace_script(SCRIPTS / "autoencoder.py", [], device="h200")
    found = counters(recording)
    assert max(found.allocated) == 4490879488 - 58757120
    assert found.reserved is not None
    assert max(found.reserved) == 7390363648
    assert any("cuDNN's convolutions" in note for note in recording.notes)


@pytest.mark.parametrize(
    "spread",
    [lambda x: FUNCTIONAL.pad(x, (1, 1, 1, 1), mode="reflect"), lambda x: FUNCTIONAL.pixel_shuffle(x, 2)],
    ids=["reflection", "pixel shuffle"],
)
def test_kernels_that_know_no_channels_last_on_cuda(spread: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        y = spread(x)
        assert y.is_contiguous()
        return y

    recorded(lambda: half(2, 8, 6, 6).to(memory_format=torch.channels_last), run)


def test_a_log_sigmoid_keeps_no_buffer() -> None:
    events, _ = recorded(lambda: half(ROWS, WIDTH, grad=True), FUNCTIONAL.logsigmoid)
    assert events == [2 * ROWS * WIDTH]
