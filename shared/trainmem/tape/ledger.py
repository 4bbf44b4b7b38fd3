"""The events that a tape writes down: what is allocated, for which bucket and in whose name, and what is freed."""

from __future__ import annotations

from typing import Any

from trainmem.tape.tensor import BUCKET, Memory, Shape, SizeSpec, Tensor

__all__ = ["LOADED_KEYS", "Ledger"]

LOADED_KEYS = 1 << 40


class Ledger:
    """Allocations and frees in order.

    ``codes``: a number >= 0 is the key of what is allocated, ``~key`` frees it; keys from `LOADED_KEYS` on count
    ``loaded``, parameters that lay in memory before. ``boundaries``: (how many codes come
    before, how many allocations, label).
    """

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.loaded: list[str] = []
        self.boundaries: list[tuple[int, int, tuple[str, int]]] = []
        self.made: list[tuple[Any, tuple[Any, ...], str, str]] = []
        """By key: the head of a size and what follows it, the module as ``prefix`` has it, and the op."""
        self.bucket_of: list[int] = []
        self.ones: frozenset[str] = frozenset()
        """Dimensions of one element, which views need no copy to cross."""
        self.stream_of: dict[int, int] = {}
        self.once: set[int] = set()
        self.bucket = BUCKET["temporaries"]
        self.thread = "forward"
        self.prefix = ""
        """The module that runs, as it stands before the names of its ops."""
        self._once_seen: dict[tuple[str, str], Memory] = {}

    def alloc(self, shape: Shape, itemsize: int, op: str, bucket: int | None = None) -> Tensor:
        """A new tensor in memory of its own."""
        return Tensor(
            self._memory(itemsize, shape, op, self.bucket if bucket is None else bucket), shape, itemsize
        )

    def alloc_like(self, tensor: Tensor, shape: Shape, itemsize: int, op: str) -> Tensor:
        """A new tensor in the memory order of another, as pointwise kernels make their results."""
        out = self.alloc(shape, itemsize, op)
        out.apart = tensor.apart
        return out

    def scratch(self, size: SizeSpec, op: str) -> Tensor:
        """Memory of a kernel's own, freed when the caller drops it."""
        return Tensor(self._memory(size[0], size[1:], op, self.bucket), (), 1)

    def _memory(self, head: Any, rest: tuple[Any, ...], op: str, bucket: int) -> Memory:
        made, codes = self.made, self.codes
        key = len(made)
        made.append((head, rest, self.prefix, op))
        self.bucket_of.append(bucket)
        codes.append(key)
        return Memory(codes, key)

    def on_stream(self, stream: int, size: SizeSpec, op: str, bucket: int) -> Tensor:
        """Memory of another stream's pool."""
        memory = self._memory(size[0], size[1:], op, bucket)
        self.stream_of[memory.key] = stream
        return Tensor(memory, (), 1)

    def workspace(self, kind: str, size: SizeSpec) -> None:
        """A library's workspace: allocated at first use in a thread, never freed."""
        where = (self.thread, kind)
        if where not in self._once_seen:
            memory = self._once_seen[where] = self._memory(size[0], size[1:], kind, BUCKET["workspace"])
            self.once.add(memory.key)

    def replace_loaded(self, name: str, size: SizeSpec) -> None:
        """A parameter takes new memory at its first use (``parameter.data = ...``), and its old memory dies."""
        where = ("loaded", name)
        if where not in self._once_seen:
            memory = self._once_seen[where] = self._memory(size[0], size[1:], "parameter", BUCKET["weights"])
            self.once.add(memory.key)
            self.codes.append(~(LOADED_KEYS + len(self.loaded)))
            self.loaded.append(name)

    def boundary(self, label: tuple[str, int]) -> None:
        """What follows belongs to another part of the step."""
        self.boundaries.append((len(self.codes), len(self.made), label))

    def release(self) -> None:
        """Let go of what was recorded: memories know the codes, so that all of it would wait for the collector."""
        self._once_seen.clear()
        self.stream_of.clear()
        for column in (self.codes, self.made, self.bucket_of):
            column.clear()
