"""Recurrent layers without cuDNN: a loop over the steps, each a fused cell (ATen/native/RNN.cpp)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from trainmem_backend.trace.autocast import lower_precision
from trainmem_backend.trace.kernels.recurrent import MODES

if TYPE_CHECKING:
    from trainmem_backend.trace.recurrent import Layers

__all__ = ["gru_cell", "lstm_cell", "run_layers"]

aten = torch.ops.aten
State = tuple[torch.Tensor, ...]
Cell = Callable[..., State]


def _lstm(data: torch.Tensor, state: State, params: Sequence[torch.Tensor | None]) -> State:
    w_ih, w_hh, b_ih, b_hh, w_hr = _five(params)
    of_input, of_state = data.matmul(w_ih.t()), state[0].matmul(w_hh.t())
    hidden, cell, _ = aten._thnn_fused_lstm_cell(of_input, of_state, state[1], b_ih, b_hh)
    return (hidden if w_hr is None else hidden.matmul(w_hr.t())), cell


def _gru(data: torch.Tensor, state: State, params: Sequence[torch.Tensor | None]) -> State:
    w_ih, w_hh, b_ih, b_hh, _ = _five(params)
    of_input, of_state = data.matmul(w_ih.t()), state[0].matmul(w_hh.t())
    return (aten._thnn_fused_gru_cell(of_input, of_state, state[0], b_ih, b_hh)[0],)


def _simple(squash: Callable[[torch.Tensor], torch.Tensor]) -> Cell:
    def cell(data: torch.Tensor, state: State, params: Sequence[torch.Tensor | None]) -> State:
        w_ih, w_hh, b_ih, b_hh, _ = _five(params)
        linear = torch.nn.functional.linear
        return (squash(linear(state[0], w_hh, b_hh).add_(linear(data, w_ih, b_ih))),)

    return cell


def _five(params: Sequence[torch.Tensor | None]) -> Any:
    """Two matrices, two biases and a projection, None where the layer has none."""
    matrices, rest = list(params[:2]), list(params[2:])
    projection = rest.pop() if len(rest) in (1, 3) else None
    return (*matrices, *(rest or (None, None)), projection)


_CELLS = {"lstm": _lstm, "gru": _gru, "rnn_tanh": _simple(torch.tanh), "rnn_relu": _simple(torch.relu)}


def lstm_cell(
    data: torch.Tensor,
    hx: Sequence[torch.Tensor],
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor | None = None,
    b_hh: torch.Tensor | None = None,
) -> State:
    """`torch.lstm_cell`."""
    with lower_precision((data, *hx, w_ih, w_hh, b_ih, b_hh)) as (data, hidden, cell, *params):
        return _lstm(data, (hidden, cell), params)


def gru_cell(
    data: torch.Tensor,
    hx: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor | None = None,
    b_hh: torch.Tensor | None = None,
) -> torch.Tensor:
    """`torch.gru_cell`."""
    with lower_precision((data, hx, w_ih, w_hh, b_ih, b_hh)) as (data, hidden, *params):
        return _gru(data, (hidden,), params)[0]


def run_layers(call: Layers) -> tuple[torch.Tensor, ...]:
    """All layers one after the other: their output and last states."""
    cell = next(_CELLS[name] for name, mode in MODES.items() if mode == call.mode)
    data = call.data.transpose(0, 1) if call.batch_first and not call.batch_sizes else call.data
    states = [state.unbind(0) for state in (call.hx, call.cx) if state is not None]
    directions = 2 if call.bidirectional else 1
    last: list[State] = []
    for layer in range(call.num_layers):
        steps = list(data.split(call.batch_sizes) if call.batch_sizes else data.unbind(0))
        outputs = []
        for direction in range(directions):
            number = layer * directions + direction
            params = call.params[number * call.per_layer : (number + 1) * call.per_layer]
            state = tuple(parts[number] for parts in states)
            ordered = steps[::-1] if direction else steps
            made, end = _run_steps(cell, ordered, state, params)
            made = made[::-1] if direction else made
            outputs.append(torch.cat(made) if call.batch_sizes else torch.stack(made))
            last.append(end)
        data = torch.cat(outputs, -1) if directions > 1 else outputs[0]
        if call.dropout and call.train and layer < call.num_layers - 1:
            data = torch.dropout(data, call.dropout, True)
    output = data.transpose(0, 1) if call.batch_first and not call.batch_sizes else data
    return (output, *(torch.stack(parts) for parts in zip(*last, strict=True)))


def _run_steps(
    cell: Cell, steps: Sequence[torch.Tensor], state: State, params: Sequence[torch.Tensor]
) -> tuple[list[torch.Tensor], State]:
    """Sequences that end on the way leave their state; those that begin on the way, backwards, join with theirs."""
    whole, made, ended = state, [], []
    state = tuple(part[: steps[0].shape[0]] for part in state)
    for step in steps:
        count, before = step.shape[0], state[0].shape[0]
        if count < before:
            ended.append(tuple(part[count:] for part in state))
            state = tuple(part[:count] for part in state)
        elif count > before:
            joined = zip(state, whole, strict=True)
            state = tuple(torch.cat((part, rest[before:count])) for part, rest in joined)
        state = cell(step, state, params)
        made.append(state[0])
    if ended:
        state = tuple(torch.cat(parts) for parts in zip(state, *reversed(ended), strict=True))
    return made, state
