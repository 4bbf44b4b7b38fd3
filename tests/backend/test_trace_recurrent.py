"""Recurrent layers on the virtual GPU: what cuDNN and PyTorch's fused cells allocate."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence  # noqa: E402

from trainmem.recording import counters  # noqa: E402
from trainmem_backend.trace.gpu import gpu_traits  # noqa: E402
from trainmem_backend.trace.kernels.recurrent import LSTM, MODES, reserve_bytes  # noqa: E402
from trainmem_backend.trace.program import trace_script  # noqa: E402
from trainmem_backend.trace.session import TraceSession, tracing  # noqa: E402

pytestmark = pytest.mark.torch

nn = torch.nn
SCRIPTS = Path(__file__).parents[1] / "data" / "scripts"
STEPS, BATCH, WIDTH, HIDDEN = 10, 4, 32, 64


def test_a_model_of_lstms_takes_what_it_took_on_an_h200() -> None:
    recording = trace_script(SCRIPTS / "recurrent.py", [], device="h200")
    found = counters(recording)
    assert max(found.allocated) == 1830433792
    # Beyond it cuDNN took a workspace of 176 to 178 MiB, of which the recording says that it is not counted.
    assert found.reserved is not None
    assert 2279604224 - (178 << 20) < max(found.reserved) < 2279604224
    assert [warning for warning in recording.warnings if "workspace" in warning] == recording.warnings != []


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        # PyTorch's logs of a 16-bit LSTM of 768, 64 sequences of 50 steps, in cuDNN 8
        ((LSTM, 64 * 50, 768, 1, 0.0, 2), 24576016),
        # cuDNN 7, four layers of 320, 25,000 steps: 736,000,000 and 864,000,000 bytes without the header
        ((LSTM, 25000, 320, 4, 0.0, 4), 736000016),
        ((MODES["gru"], 25000, 320, 4, 0.0, 4), 864000016),
    ],
)
def test_the_reserve_space_is_what_cudnn_answers(arguments: Any, answer: int) -> None:
    assert reserve_bytes(*arguments) == answer


def recorded(run: Callable[[TraceSession], object]) -> Any:
    with tracing(gpu_traits("h200")) as session:
        run(session)
        return session.recorder.recording


def batch(**options: Any) -> torch.Tensor:
    return torch.randn(STEPS, BATCH, WIDTH, device="cuda", **options).requires_grad_()


def test_weights_are_parts_of_one_buffer_and_so_are_their_gradients() -> None:
    def run(session: TraceSession) -> None:
        layers = nn.LSTM(WIDTH, HIDDEN, 2).cuda()
        number_of = session.recorder.number_of
        assert len({number_of(parameter) for parameter in layers.parameters()}) == 1
        layers(batch())[0].sum().backward()
        gradients = {number_of(parameter.grad) for parameter in layers.parameters()}
        assert len(gradients) == 1
        size = session.recorder.recording.events[-1]
        layers.zero_grad()
        assert session.recorder.recording.events[-1] == ~gradients.pop() != size

    recorded(run)


def test_without_biases_gradients_are_tensors_of_their_own() -> None:
    def run(session: TraceSession) -> None:
        layers = nn.GRU(WIDTH, HIDDEN, 2, bias=False).cuda()
        layers(batch())[0].sum().backward()
        assert len({session.recorder.number_of(parameter.grad) for parameter in layers.parameters()}) == 4

    recorded(run)


def test_copied_layers_are_compacted_at_every_call() -> None:
    def run(session: TraceSession) -> None:
        layers = nn.LSTM(WIDTH, HIDDEN).cuda()
        for module, expected in ((layers, False), (copy.deepcopy(layers), True)):
            flat = 4 * sum(parameter.numel() for parameter in module.parameters())
            data = batch()
            before = len(session.recorder.recording.events)
            kept = module(data)
            assert (flat in session.recorder.recording.events[before:]) is expected
            del kept

    recorded(run)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_runs_them_in_half_precision_whatever_its_dtype(dtype: torch.dtype) -> None:
    def run(session: TraceSession) -> None:
        layers = nn.LSTM(WIDTH, HIDDEN).cuda()
        with torch.autocast("cuda", dtype=dtype):
            output, _ = layers(batch())
        assert output.dtype is torch.float16
        output.float().sum().backward()
        numbers = {session.recorder.number_of(parameter.grad) for parameter in layers.parameters()}
        assert all(parameter.grad.dtype is torch.float32 for parameter in layers.parameters())
        assert len(numbers) == 4

    assert "cudnn_rnn" in recorded(run).op_of


def test_evaluation_keeps_no_reserve_space_and_has_no_backward() -> None:
    def run(session: TraceSession) -> None:
        layers = nn.LSTM(WIDTH, HIDDEN).cuda().eval()
        data = batch()
        before = len(session.recorder.recording.events)
        output, _ = layers(data)
        sizes = [event for event in session.recorder.recording.events[before:] if event > 0]
        state = 4 * BATCH * HIDDEN
        assert sizes == [state, state, STEPS * state, state, state]
        with pytest.raises(RuntimeError, match="only be called in training mode"):
            output.sum().backward()

    recorded(run)


@pytest.mark.parametrize(("cell", "gates"), [(nn.LSTMCell, 4), (nn.GRUCell, 3)])
@pytest.mark.parametrize("autocast", [False, True])
def test_cells_are_fused_and_autocast_casts_their_weights_once(cell: Any, gates: int, autocast: bool) -> None:
    def run(session: TraceSession) -> None:
        module, state = cell(WIDTH, HIDDEN).cuda(), None
        steps, recording = batch(), session.recorder.recording
        before = len(recording.op_of)
        with torch.autocast("cuda", dtype=torch.float16, enabled=autocast):
            for step in steps:
                state = module(step, state)
            made = [event for event in recording.events if event > 0]
            casts = [
                size
                for size, op in zip(made[before:], recording.op_of[before:], strict=True)
                if op == "to_copy" and size == 2 * gates * HIDDEN * HIDDEN
            ]
        assert len(casts) == autocast
        last = state[0] if isinstance(state, tuple) else state
        assert last.dtype is (torch.float16 if autocast else torch.float32)
        last.float().sum().backward()
        assert all(parameter.grad is not None for parameter in module.parameters())

    kind = "lstm" if gates == 4 else "gru"
    assert f"thnn_fused {kind}_cell" in recorded(run).op_of


KINDS = {
    "lstm": lambda **k: nn.LSTM(WIDTH, HIDDEN, 2, **k),
    "gru": lambda **k: nn.GRU(WIDTH, HIDDEN, 2, **k),
    "rnn": lambda **k: nn.RNN(WIDTH, HIDDEN, 2, **k),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "both ways": {"bidirectional": True, "dropout": 0.1},
    "batch first": {"batch_first": True},
}


@pytest.mark.parametrize("enabled", [True, False], ids=["cudnn", "no cudnn"])
@pytest.mark.parametrize("is_packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("option", OPTIONS)
def test_outputs_and_states_have_the_shapes_that_the_cpu_gives_them(
    option: str, is_packed: bool, enabled: bool
) -> None:
    first = OPTIONS[option].get("batch_first", False)

    def shapes(device: str, kind: str) -> list[Any]:
        layers = KINDS[kind](**OPTIONS[option]).to(device)
        data = torch.zeros(STEPS, BATCH, WIDTH, device=device, requires_grad=True)
        given: Any = data.transpose(0, 1) if first else data
        if is_packed:
            given = pack_padded_sequence(given, torch.tensor([10, 9, 7, 3]), batch_first=first)
        output, states = layers(given)
        lengths: list[int] = []
        if is_packed:
            output, found = pad_packed_sequence(output, batch_first=first)
            lengths = found.tolist()
        output.sum().backward()
        states = states if isinstance(states, tuple) else (states,)
        return [output.shape, [state.shape for state in states], lengths, data.grad.shape]

    expected = [shapes("cpu", kind) for kind in KINDS]
    with tracing(gpu_traits("h200")), torch.backends.cudnn.flags(enabled=enabled):
        found = [shapes("cuda", kind) for kind in KINDS]
    assert found == expected


def test_lengths_that_only_the_gpu_knows_are_taken_to_be_full() -> None:
    def run(session: TraceSession) -> None:
        lengths = torch.randint(1, STEPS, (BATCH,), device="cuda").cpu()
        packed = pack_padded_sequence(batch(), lengths, enforce_sorted=False)
        assert packed.data.shape == (STEPS * BATCH, WIDTH)

    assert any("lengths of packed sequences" in note for note in recorded(run).notes)
