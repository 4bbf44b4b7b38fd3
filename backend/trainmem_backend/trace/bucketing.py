"""What each allocation turned out to be, decided when a phase ends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from trainmem_backend.trace.recorder import BUCKET_INDEX, Recorder

__all__ = ["Bucketing"]

_WEIGHTS, _MASTERS = BUCKET_INDEX["weights"], BUCKET_INDEX["master_weights"]
_GRADIENTS, _STATE = BUCKET_INDEX["gradients"], BUCKET_INDEX["optimizer_state"]
_ACTIVATIONS, _TEMPORARIES = BUCKET_INDEX["activations"], BUCKET_INDEX["temporaries"]
_LOGITS = BUCKET_INDEX["logits"]
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")


class Bucketing:
    """Moves allocations from `temporaries` to what they are.

    Saved for backward is what is still alive when forward ends, or when a checkpoint's recomputation ends;
    optimizer state is what a step leaves behind.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._since = 0
        self._owners: dict[int, str] = {}

    def start(self) -> None:
        """A phase, or a recomputation inside backward, begins."""
        self._since = len(self.recorder.recording.bucket_of)

    def _move_new(self, bucket: int) -> None:
        recorder = self.recorder
        of = recorder.recording.bucket_of
        live = recorder.live_numbers()
        for number in range(self._since, len(of)):
            if of[number] == _TEMPORARIES and number in live:
                of[number] = bucket
        self.start()

    def saved(self) -> None:
        """What was made since `start` and still lives is kept for backward."""
        self._move_new(_ACTIVATIONS)

    def answered(self, numbers: Iterable[int]) -> None:
        """Of allocations that a model answers with, the products of its last layer are scores, whatever its name."""
        op_of = self.recorder.recording.op_of
        self.scores(number for number in numbers if number >= 0 and op_of[number] in _PRODUCTS)

    def scores(self, numbers: Iterable[int]) -> None:
        """What a loss reads is logits."""
        of = self.recorder.recording.bucket_of
        for number in numbers:
            if number >= 0 and of[number] in (_ACTIVATIONS, _TEMPORARIES):
                of[number] = _LOGITS

    def state(self) -> None:
        """What was made since `start` and still lives is the optimizer's."""
        self._move_new(_STATE)

    def owned(self, states: Iterable[Any]) -> None:
        """The tensors in an optimizer's ``states``, which a checkpoint or a hook may have brought, are state."""
        for state in states:
            if isinstance(state, dict):
                self._move(((tensor, "") for tensor in state.values()), _STATE)

    def _move(self, tensors: Iterable[tuple[Any, str]], bucket: int) -> None:
        recorder = self.recorder
        for tensor, owner in tensors:
            if isinstance(tensor, FakeTensor):
                number = recorder.number_of(tensor)
                if number >= 0:
                    recorder.recording.bucket_of[number] = bucket
                    if owner and not recorder.recording.module_of[number]:
                        recorder.recording.module_of[number] = owner
            elif type(tensor).__name__ == "DTensor":
                self._move([(tensor._local_tensor, owner)], bucket)

    def weights(self, model: torch.nn.Module) -> None:
        """Everything loaded so far is the model."""
        recorder = self.recorder
        for number in recorder.live_numbers():
            if recorder.recording.bucket_of[number] == _TEMPORARIES:
                recorder.recording.bucket_of[number] = _WEIGHTS
        for path, module in model.named_modules():
            own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
            self._owners.update({id(tensor): path for tensor in own})
            self._move(((tensor, path) for tensor in own), _WEIGHTS)

    def masters(self, parameters: Iterable[torch.Tensor]) -> None:
        """Copies of the weights that the optimizer updates."""
        self._move(((parameter, "") for parameter in parameters), _MASTERS)

    def gradients(self, parameters: Iterable[torch.Tensor]) -> None:
        """The parameters' gradients as they are now."""
        owners = self._owners
        self._move(((p.grad, owners.get(id(p), "")) for p in parameters), _GRADIENTS)
