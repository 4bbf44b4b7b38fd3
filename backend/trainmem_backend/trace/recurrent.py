"""Recurrent layers on a GPU: cuDNN runs them where it may, and fused cells elsewhere (ATen/native/RNN.cpp)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from trainmem_backend.trace.kernels.recurrent import LSTM, MODES, flat_layout
from trainmem_backend.trace.record_mode import RecordMode
from trainmem_backend.trace.recurrent_cells import gru_cell, lstm_cell, run_layers

__all__ = ["RecurrentOps"]

aten = torch.ops.aten
_DROPOUT_BYTES_PER_MULTIPROCESSOR = 48 << 10
"""cudnnDropoutGetStatesSize on an H200: 6,488,064 bytes for 132 multiprocessors."""
_SEED_BYTES = 8


@dataclass(frozen=True, slots=True)
class Layers:
    """The arguments of `torch.lstm` and its kin; ``batch_sizes`` is empty where sequences are padded."""

    mode: int
    data: torch.Tensor
    batch_sizes: list[int]
    hx: torch.Tensor
    cx: torch.Tensor | None
    params: list[torch.Tensor]
    num_layers: int
    dropout: float
    train: bool
    bidirectional: bool
    batch_first: bool

    @property
    def hidden_size(self) -> int:
        return int((self.hx if self.cx is None else self.cx).shape[2])

    @property
    def proj_size(self) -> int:
        """Width of the projected state, 0 where nothing is projected."""
        width = int(self.hx.shape[2])
        return width if width != self.hidden_size else 0

    @property
    def per_layer(self) -> int:
        return len(self.params) // (self.num_layers * (2 if self.bidirectional else 1))


class RecurrentOps:
    """What they do with tensors on the device."""

    def __init__(self, record_mode: RecordMode, on_device: Callable[[torch.Tensor], bool]) -> None:
        self.record_mode, self._on_device = record_mode, on_device
        self._has_dropout_state = False

    def handlers(self) -> dict[Any, Callable[..., Any]]:
        """By the function that each stands for."""
        return {
            **{getattr(torch, name): self._layers(mode) for name, mode in MODES.items()},
            torch.lstm_cell: self._cell(lstm_cell),
            torch.gru_cell: self._cell(gru_cell),
            torch._pad_packed_sequence: self._pad,
        }

    def _layers(self, mode: int) -> Callable[..., Any]:
        def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if kwargs or not self._on_device(args[0]):
                return func(*args, **kwargs)
            data, second, third, *_ = args
            is_packed = isinstance(second, torch.Tensor) and (mode == LSTM or isinstance(third, torch.Tensor))
            hidden, params, _, layers, dropout, train, bidirectional, *first = args[2 if is_packed else 1 :]
            hx, cx = hidden if mode == LSTM else (hidden, None)
            call = Layers(
                mode,
                data,
                _values(second) if is_packed else [],
                hx,
                cx,
                list(params),
                layers,
                dropout,
                train,
                bidirectional,
                bool(first and first[0]),
            )
            results = self._in_cudnn(call) if _is_acceptable(data) else run_layers(call)
            return results[: 3 if mode == LSTM else 2]

        return run

    def _in_cudnn(self, call: Layers) -> Any:
        offsets, total = flat_layout(
            call.mode,
            call.data.shape[-1],
            call.hidden_size,
            call.proj_size,
            call.num_layers,
            call.bidirectional,
            call.per_layer,
        )
        flat = _flat_buffer(call.params, offsets, total)
        if call.train and call.dropout > 0:
            self._make_dropout_state()
        data, params, hx, cx = call.data, call.params, call.hx, call.cx
        if torch.is_autocast_enabled("cpu"):
            # cuDNN's layers run in float16, whatever dtype autocast aims for (AutocastRNN.cpp)
            if params[0].dtype is torch.float32:
                flat, params = _in_half(params, offsets, total)
            data, hx, cx = _half(data), _half(hx), None if cx is None else _half(cx)
        return aten._cudnn_rnn(
            data,
            params,
            call.per_layer,
            flat,
            hx,
            cx,
            call.mode,
            call.hidden_size,
            call.proj_size,
            call.num_layers,
            call.batch_first,
            call.dropout,
            call.train,
            call.bidirectional,
            call.batch_sizes,
            None,
        )

    def _make_dropout_state(self) -> None:
        """Random states for dropout, made once and kept, after a seed was drawn on the device (get_dropout_state)."""
        if self._has_dropout_state:
            return
        self._has_dropout_state = True
        recorder = self.record_mode.recorder
        recorder.op = "cudnn_init_dropout_state"
        recorder.scratch(_SEED_BYTES)
        recorder.workspace(self.record_mode.traits.multiprocessors * _DROPOUT_BYTES_PER_MULTIPROCESSOR)

    def _cell(self, cell: Callable[..., Any]) -> Callable[..., Any]:
        def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return cell(*args, **kwargs) if self._on_device(args[0]) else func(*args, **kwargs)

        return run

    def _pad(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`_pad_packed_sequence`: filled with the padding, then overwritten run by run (PackedSequence.cpp).

        In C++ it writes lengths to memory of the host that it makes itself, which would pass for the device's.
        """
        data, batch_sizes, batch_first, padding, total = args
        if kwargs or not self._on_device(data):
            return func(*args, **kwargs)
        counts = _values(batch_sizes)
        output = data.new_full((max(len(counts), total), counts[0], *data.shape[1:]), padding)
        start = offset = 0
        for end in range(1, len(counts) + 1):
            if end == len(counts) or counts[end] != counts[start]:
                rows = (end - start) * counts[start]
                run = data[offset : offset + rows].view(end - start, counts[start], *data.shape[1:])
                output[start:end, : counts[start]].copy_(run)
                start, offset = end, offset + rows
        with _disable_current_modes():
            lengths = torch.tensor([sum(count > n for count in counts) for n in range(counts[0])])
        return (output.transpose(0, 1) if batch_first else output), lengths


def _values(tensor: torch.Tensor) -> list[int]:
    with _disable_current_modes():
        values: list[int] = tensor.tolist()
    return values


def _is_acceptable(data: torch.Tensor) -> bool:
    """use_cudnn in RNN.cpp: it takes every floating dtype, bf16 from Ampere on; empty batches it does not."""
    return torch._C._get_cudnn_enabled() and data.numel() > 0


def _half(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dtype in (torch.float16, torch.float64) else tensor.to(torch.float16)


def _flat_buffer(params: Sequence[torch.Tensor], offsets: list[int], total: int) -> torch.Tensor | None:
    """The buffer that the parameters are parts of, if they are (try_get_weight_buf)."""
    first = params[0]
    storage = first.untyped_storage()
    are_parts = storage.nbytes() >= total * first.element_size() and all(
        param.untyped_storage()._cdata == storage._cdata and param.storage_offset() == at
        for at, param in zip(offsets, params, strict=True)
    )
    return first.detach().as_strided((total,), (1,), 0) if are_parts else None


def _in_half(
    params: Sequence[torch.Tensor], offsets: list[int], total: int
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """A float16 copy of the parameters in a buffer of its own, which autograd follows, at every call."""
    with torch.no_grad():
        buffer = params[0].new_zeros(total, dtype=torch.float16)
        parts = [
            buffer.as_strided(param.shape, param.stride(), at)
            for at, param in zip(offsets, params, strict=True)
        ]
    # detached, a part is no view to autograd: its gradient goes through a cast alone
    return buffer, [part.detach().copy_(param) for part, param in zip(parts, params, strict=True)]
