"""Streams and events of a CUDA device that is not there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import count
from typing import Any

from trainmem_backend.trace.recorder import Recorder
from trainmem_backend.trace.virtual_cuda import CUDA

__all__ = ["Streams", "VirtualStream"]


class VirtualStream:
    """A stream or event of the virtual device: work on it is done at once, memory on it is its own."""

    def __init__(self, *args: Any, number: int = 0, **kwargs: Any) -> None:
        self.cuda_stream = self.stream_id = number
        self.device = CUDA

    def __enter__(self) -> VirtualStream:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: True if name == "query" else 0.0 if name == "elapsed_time" else None


class Streams:
    """`torch.cuda`'s streams, with the one that is current."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._default = VirtualStream()
        self._current = self._default
        numbers = count(1)

        class Stream(VirtualStream):
            """`torch.cuda.Stream`: every one has memory of its own."""

            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(number=next(numbers))

        self.Stream = Stream

    def default(self, *args: Any) -> VirtualStream:
        """The stream that everything uses unless told otherwise."""
        return self._default

    def current(self, *args: Any) -> VirtualStream:
        """The stream in use."""
        return self._current

    @contextlib.contextmanager
    def using(self, stream: VirtualStream | None) -> Iterator[None]:
        """`torch.cuda.stream`."""
        before = self._current
        self._set(before if stream is None else stream)
        try:
            yield
        finally:
            self._set(before)

    def _set(self, stream: VirtualStream) -> None:
        self._current, self.recorder.stream = stream, stream.cuda_stream
