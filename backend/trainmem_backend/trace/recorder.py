"""Storages of fake device tensors, watched from birth to death, as a `Recording`."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from functools import partial

import torch

from trainmem.buckets import BUCKETS
from trainmem.recording import Mark, Phase, Recording

__all__ = ["BUCKET_INDEX", "Recorder"]

BUCKET_INDEX = {name: index for index, name in enumerate(BUCKETS)}
_TEMPORARIES = BUCKET_INDEX["temporaries"]
_WORKSPACE = BUCKET_INDEX["workspace"]


class Recorder:
    """Writes a `Recording` while storages come and go.

    A device tensor is one whose storage is watched here; every other tensor lives on the host, at no cost.
    """

    def __init__(self) -> None:
        self.recording = Recording()
        self.module = ""
        self.op = ""
        self.step = 0
        self.phase: Phase = "setup"
        self.managed_bytes = 0
        self.bucket = _TEMPORARIES
        self.stream = 0
        self._filling: int | None = None
        self._held_back: list[int] | None = None
        self._numbers: dict[int, tuple[int, weakref.ref[torch.UntypedStorage]]] = {}
        self._live: set[int] = set()

    def mark(self, step: int, phase: Phase, micro: int = 0, *, event: int | None = None) -> None:
        """A phase of a step begins; with ``event``, it began before that event."""
        self.step, self.phase = step, phase
        self.recording.marks.append(
            Mark(len(self.recording.events) if event is None else event, step, phase, micro)
        )

    def note(self, text: str) -> None:
        """What a reader of the recording should know."""
        if text not in self.recording.notes:
            self.recording.notes.append(text)

    def warn(self, text: str) -> None:
        """What makes the figures less than exact."""
        if text not in self.recording.warnings:
            self.recording.warnings.append(text)

    def empty_cache(self) -> None:
        """The program calls ``torch.cuda.empty_cache``."""
        self.recording.empty_cache_before.append(len(self.recording.events))

    def is_device(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor lives on the (virtual) device."""
        return tensor.untyped_storage()._cdata in self._numbers

    def number_of(self, tensor: torch.Tensor) -> int:
        """The allocation that holds the tensor, -1 when none does."""
        entry = self._numbers.get(tensor.untyped_storage()._cdata)
        return -1 if entry is None else entry[0]

    def allocate(self, size_bytes: int, bucket: int | None = None) -> int:
        """Scratch memory that no tensor holds; the caller frees it."""
        if bucket is None:
            bucket = self.bucket if self._filling is None else self._filling
        number = self.recording.allocate(size_bytes, bucket, self.op, self.module)
        if number >= 0:
            self._live.add(number)
            if self.stream:
                self.recording.stream_of[number] = self.stream
        return number

    @contextlib.contextmanager
    def filling(self, bucket: int) -> Iterator[None]:
        """Whatever is allocated inside belongs to this bucket."""
        before, self._filling = self._filling, bucket
        try:
            yield
        finally:
            self._filling = before

    def free(self, number: int) -> None:
        """Give back what `allocate` answered."""
        self._live.discard(number)
        if self._held_back is None:
            self.recording.free(number)
        else:
            self._held_back.append(number)

    @contextlib.contextmanager
    def freeing_in_order(self) -> Iterator[None]:
        """What dies inside is freed in the order in which it was made."""
        self._held_back = []
        try:
            yield
        finally:
            numbers, self._held_back = self._held_back, None
            for number in sorted(numbers):
                self.recording.free(number)

    def scratch(self, *sizes_bytes: int) -> None:
        """Allocate each size in order, then free them in reverse, as C++ locals of one kernel do."""
        numbers = [self.allocate(size) for size in sizes_bytes]
        for number in reversed(numbers):
            self.free(number)

    def watch(self, tensor: torch.Tensor, size_bytes: int | None = None) -> int:
        """A tensor came out of a kernel: record its storage when it is new, and its end when it dies.

        ``size_bytes`` is given where the CUDA kernel's output has another dtype than the fake one's.
        """
        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self._numbers.get(key)
        if known is not None:
            return known[0]
        number = self.allocate(storage.nbytes() if size_bytes is None else size_bytes)
        self._bind(storage, key, number)
        return number

    def adopt(self, tensor: torch.Tensor, number: int) -> None:
        """The tensor's storage occupies an allocation that was recorded before."""
        storage = tensor.untyped_storage()
        self._bind(storage, storage._cdata, number)

    def resized(self, storage: torch.UntypedStorage, size_bytes: int) -> None:
        """A watched storage gave its memory back (0 bytes) or took new."""
        key = storage._cdata
        entry = self._numbers.get(key)
        if entry is None:
            return
        self.op = "resize"
        self.free(entry[0])
        self._bind(storage, key, self.allocate(size_bytes))

    def release(self, tensor: torch.Tensor) -> int:
        """Stop watching the tensor's storage; answers its allocation, which stays allocated."""
        return self._numbers.pop(tensor.untyped_storage()._cdata)[0]

    def _bind(self, storage: torch.UntypedStorage, key: int, number: int) -> None:
        self._numbers[key] = (number, weakref.ref(storage, partial(self._on_death, key, number)))

    def _on_death(self, key: int, number: int, reference: object) -> None:
        entry = self._numbers.get(key)
        if entry is not None and entry[1] is reference:
            del self._numbers[key]
            self.free(number)

    def live_numbers(self) -> set[int]:
        """Allocations not yet freed."""
        return self._live

    def workspace(self, size_bytes: int) -> int:
        """Memory that a library keeps between operations."""
        return self.allocate(size_bytes, _WORKSPACE)
