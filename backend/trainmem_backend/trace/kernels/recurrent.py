"""Recurrent layers as cuDNN runs them: the allocations of ATen/native/cudnn/RNN.cpp, in its order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trainmem_backend.trace.kernels.registry import KernelCall, rule

__all__ = ["LSTM", "MODES", "flat_layout", "reserve_bytes"]

MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
"""cudnnRNNMode_t."""
LSTM, GRU = MODES["lstm"], MODES["gru"]
_GATES = {LSTM: 4, GRU: 3}
_SAVED = {LSTM: 5, GRU: 6}
"""Numbers that a layer keeps for each unit of every step: an LSTM its four gates and the cell. cuDNN's answers for
LSTMs (7 to 9) and a GRU (7) leave no other choice; for `torch.nn.RNN`, its only gate is taken."""
_RESERVE_HEADER_BYTES = 16
_NOT_COUNTED = (
    "recurrent layers run in cuDNN, whose workspace, held while each runs, is not counted: more may be reserved; "
    "what they keep for backward is known of LSTMs, less surely of nn.GRU, and guessed for nn.RNN"
)


def flat_layout(
    mode: int,
    input_size: int,
    hidden_size: int,
    proj_size: int,
    layers: int,
    bidirectional: bool,
    per_layer: int,
) -> tuple[list[int], int]:
    """Where each parameter begins in cuDNN's flat buffer, and the buffer's length, both in elements.

    The buffer has room for two biases of every gate, also where the layer has none (``per_layer`` is the number of
    its parameters).
    """
    directions = 2 if bidirectional else 1
    rows, out = _GATES.get(mode, 1) * hidden_size, proj_size or hidden_size
    offsets: list[int] = []
    at = 0
    for layer in range(layers):
        width = input_size if layer == 0 else out * directions
        for _ in range(directions):
            parts = [(rows * width, True), (rows * out, True), *([(rows, per_layer > 3)] * 2)]
            if proj_size:
                parts.append((proj_size * hidden_size, True))
            for size, is_parameter in parts:
                if is_parameter:
                    offsets.append(at)
                at += size
    return offsets, at


@dataclass(frozen=True, slots=True)
class _Layers:
    """The arguments that forward and backward share."""

    input: torch.Tensor
    weight: list[torch.Tensor]
    weight_stride0: int
    hx: torch.Tensor
    cx: torch.Tensor | None
    mode: int
    hidden_size: int
    proj_size: int
    num_layers: int
    batch_first: bool
    dropout: float
    train: bool
    bidirectional: bool
    batch_sizes: Sequence[int]

    @classmethod
    def of(cls, call: KernelCall) -> _Layers:
        return cls(*(call.named(name) for name in cls.__slots__))

    @property
    def transposes(self) -> bool:
        return self.batch_first and not self.batch_sizes

    @property
    def steps(self) -> torch.Tensor:
        """The input, steps first."""
        return self.input.transpose(0, 1) if self.transposes else self.input

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    def state(self, width: int) -> tuple[int, int, int]:
        batch = self.batch_sizes[0] if self.batch_sizes else self.steps.shape[1]
        return self.num_layers * self.directions, batch, width

    def flat(self) -> tuple[list[int], int]:
        return flat_layout(
            self.mode,
            self.input.shape[-1],
            self.hidden_size,
            self.proj_size,
            self.num_layers,
            self.bidirectional,
            self.weight_stride0,
        )

    def reserve_bytes(self) -> int:
        return reserve_bytes(
            self.mode,
            self.input.numel() // self.input.shape[-1],
            self.hidden_size * self.directions,
            self.num_layers,
            self.dropout,
            self.input.element_size(),
        )


def reserve_bytes(mode: int, steps: int, width: int, layers: int, dropout: float, element_bytes: int) -> int:
    """What cuDNN keeps for backward of ``steps``, those of all sequences together (cudnnGetRNNTempSpaceSizes).

    Each layer's `_SAVED`, the outputs between layers, and a bit for each of those that dropout goes through.
    """
    saved, between = layers * _SAVED.get(mode, 1), layers - 1
    masks = between * steps * width // 8 if dropout > 0 else 0
    return (saved + between) * steps * width * element_bytes + masks + _RESERVE_HEADER_BYTES


@rule("_cudnn_rnn")
def _forward(call: KernelCall) -> Any:
    """Output, last states, and the reserve space; an input that is not in one piece is copied meanwhile.

    Weights that are not parts of one flat buffer are copied into one, which is kept.
    """
    recorder, layers = call.recorder, _Layers.of(call)
    recorder.warn(_NOT_COUNTED)
    steps = layers.steps
    copy = call.contiguous_copy(steps)
    out = layers.proj_size or layers.hidden_size
    output = steps.new_empty((*steps.shape[:-1], out * layers.directions))
    hy = layers.hx.new_empty(layers.state(out))
    cy = layers.hx.new_empty((0,) if layers.cx is None else layers.state(layers.hidden_size))
    call.outputs((output, hy, cy))
    flat = call.named("weight_buf")
    flat = steps.new_empty(layers.flat()[1]) if flat is None else flat.view(-1)
    reserve = steps.new_empty(layers.reserve_bytes() if layers.train else 0, dtype=torch.uint8)
    call.outputs((flat, reserve))
    recorder.free(copy)
    return output.transpose(0, 1) if layers.transposes else output, hy, cy, reserve, flat


@rule("_cudnn_rnn_backward")
def _backward(call: KernelCall) -> Any:
    """Gradients of the data, then those of the weights."""
    recorder, layers = call.recorder, _Layers.of(call)
    given = [call.named(name) for name in ("grad_output", "grad_hy", "grad_cy")]
    if all(gradient is None for gradient in given):
        return None, None, None, [None] * len(layers.weight)
    if not layers.train:
        raise RuntimeError("cudnn RNN backward can only be called in training mode")
    zeros = [
        recorder.allocate(like.numel() * like.element_size())
        for gradient, like in zip(given, (call.named("output"), layers.hx, layers.cx), strict=True)
        if gradient is None and like is not None
    ]
    of_steps, of_hx, of_cx = _of_data(call, layers, given)
    of_weights = _of_weights(call, layers) if call.named("output_mask")[3] else []
    for number in reversed(zeros):
        recorder.free(number)
    return of_steps.transpose(0, 1) if layers.transposes else of_steps, of_hx, of_cx, of_weights


def _of_data(call: KernelCall, layers: _Layers, given: list[torch.Tensor | None]) -> tuple[Any, Any, Any]:
    steps, of_output = layers.steps, given[0]
    if of_output is not None and layers.transposes:
        of_output = of_output.transpose(0, 1)
    copies = [call.contiguous_copy(steps), call.contiguous_copy(of_output)]
    of_steps = call.outputs(steps.new_empty(steps.shape))
    copies += [call.contiguous_copy(gradient) for gradient in given[1:]]
    of_hx = call.outputs(layers.hx.new_empty(layers.hx.shape))
    of_cx = None if layers.cx is None else call.outputs(layers.cx.new_empty(layers.cx.shape))
    for number in reversed(copies):
        call.recorder.free(number)
    return of_steps, of_hx, of_cx


def _of_weights(call: KernelCall, layers: _Layers) -> list[torch.Tensor]:
    """Parts of one buffer, or copies of such parts where the layer has no biases."""
    copy = call.contiguous_copy(layers.steps)
    flat = call.named("weight_buf")
    buffer = call.outputs(flat.new_empty(flat.shape))
    if layers.weight_stride0 > 3:
        offsets, _ = layers.flat()
        gradients = [
            buffer.as_strided(weight.shape, weight.stride(), at)
            for at, weight in zip(offsets, layers.weight, strict=True)
        ]
    else:
        gradients = call.outputs([weight.new_empty(weight.shape) for weight in layers.weight])
    call.recorder.free(copy)
    return gradients


@rule("_cudnn_rnn_flatten_weight")
def _flatten(call: KernelCall) -> Any:
    """All parameters move into one buffer."""
    weights = call.named("weight_arr")
    names = (
        "mode",
        "input_size",
        "hidden_size",
        "proj_size",
        "num_layers",
        "bidirectional",
        "weight_stride0",
    )
    offsets, total = flat_layout(*(call.named(name) for name in names))
    buffer = call.outputs(weights[0].new_empty(total))
    for at, weight in zip(offsets, weights, strict=True):
        weight.data = buffer.as_strided(weight.shape, weight.stride(), at)
    return buffer


@rule("_thnn_fused_lstm_cell.default")
def _lstm_cell(call: KernelCall) -> Any:
    """The gates, kept for backward, come first (RNN.cu)."""
    hidden, cell, gates = call.result()
    call.outputs((gates, hidden, cell))
    return hidden, cell, gates


@rule("_thnn_fused_gru_cell.default")
def _gru_cell(call: KernelCall) -> Any:
    """Five numbers a unit are kept for backward (GRU_WORKSPACE_MULTIPLIER in RNN.cu)."""
    hidden = call.args[2]
    kept = call.outputs(hidden.new_empty((hidden.shape[0], 5 * hidden.shape[1])))
    return call.outputs(hidden.new_empty(hidden.shape)), kept


@rule("_thnn_fused_gru_cell_backward.default")
def _gru_cell_backward(call: KernelCall) -> Any:
    """Gradients of the gates' two parts, of the state, and of the two biases (RNN.cu)."""
    of_hidden, _, has_biases = call.args
    rows, width = of_hidden.shape
    of_input, of_state = (of_hidden.new_empty((rows, 3 * width)) for _ in range(2))
    biases = [of_hidden.new_empty((3 * width,)) if has_biases else None for _ in range(2)]
    return call.outputs((of_input, of_state, of_hidden.new_empty((rows, width)), *biases))
