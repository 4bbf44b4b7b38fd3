"""The events that a tape writes down: what is allocated, for which bucket and in whose name, and what is freed."""

from __future__ import annotations

from trainmem.tape.tensor import BUCKET, Shape, SizeSpec, Tensor

__all__ = ["LOADED_KEYS", "Ledger"]

LOADED_KEYS = 1 << 40


class Ledger:
    """Allocations and frees in order.

    ``codes``: a number >= 0 is the key of what is allocated, ``~key`` frees it; keys from `LOADED_KEYS` on count
    ``loaded``, parameters that lay in memory before. ``boundaries``: (how many codes come before, label).
    """

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.loaded: list[str] = []
        self.boundaries: list[tuple[int, tuple[str, int]]] = []
        self.owners: list[int] = []
        """By key: how many tensors share the memory."""
        self.size_of: list[SizeSpec] = []
        self.bucket_of: list[int] = []
        self.ones: frozenset[str] = frozenset()
        """Dimensions of one element, which views need no copy to cross."""
        self.stream_of: dict[int, int] = {}
        self.name_of: list[str] = []
        self.once: set[int] = set()
        self.bucket = BUCKET["temporaries"]
        self.thread = "forward"
        self.op_name = ""
        """The op that runs, in whose name a tensor is made that has none of its own."""
        self._prefix = ""
        self._stream = 0
        self._once_seen: dict[str, Tensor] = {}

    def alloc(self, shape: Shape, itemsize: int, op: str = "", bucket: int | None = None) -> Tensor:
        """A new tensor in memory of its own."""
        return Tensor(self, self._storage((itemsize, *shape), op, bucket), shape, itemsize)

    def alloc_like(self, tensor: Tensor, shape: Shape, itemsize: int, op: str) -> Tensor:
        """A new tensor in the memory order of another, as pointwise kernels make their results."""
        out = self.alloc(shape, itemsize, op)
        out.apart = tensor.apart
        return out

    def scratch(self, size: SizeSpec, op: str) -> Tensor:
        """Memory of a kernel's own, freed when the caller drops it."""
        return Tensor(self, self._storage(size, op, None), (), 1)

    def _storage(self, size: SizeSpec, op: str, bucket: int | None) -> int:
        key = len(self.size_of)
        self.size_of.append(size)
        self.bucket_of.append(self.bucket if bucket is None else bucket)
        if self._stream:
            self.stream_of[key] = self._stream
        self.name_of.append(self._prefix + (op or self.op_name))
        self.codes.append(key)
        self.owners.append(0)
        return key

    def on_stream(self, stream: int, size: SizeSpec, op: str, bucket: int) -> Tensor:
        """Memory of another stream's pool."""
        self._stream = stream
        storage = self._storage(size, op, bucket)
        self._stream = 0
        return Tensor(self, storage, (), 1)

    def workspace(self, kind: str, size: SizeSpec) -> None:
        """A library's workspace: allocated at first use in a thread, never freed."""
        where = f"{self.thread}.{kind}"
        if where not in self._once_seen:
            storage = self._storage(size, kind, BUCKET["workspace"])
            self.once.add(storage)
            self._once_seen[where] = Tensor(self, storage, (), 1)

    def replace_loaded(self, name: str, size: SizeSpec) -> None:
        """A parameter takes new memory at its first use (``parameter.data = ...``), and its old memory dies."""
        if name not in self._once_seen:
            storage = self._storage(size, "parameter", BUCKET["weights"])
            self.once.add(storage)
            self._once_seen[name] = Tensor(self, storage, (), 1)
            self.codes.append(~(LOADED_KEYS + len(self.loaded)))
            self.loaded.append(name)

    def boundary(self, label: tuple[str, int]) -> None:
        """What follows belongs to another part of the step."""
        self.boundaries.append((len(self.codes), label))

    def release(self) -> None:
        """Let go of what was recorded: tensors know their tape, so that all of it would wait for the collector."""
        self._once_seen.clear()
        self.stream_of.clear()
        for column in (self.codes, self.size_of, self.bucket_of, self.name_of):
            column.clear()
