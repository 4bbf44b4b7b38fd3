"""FSDP2 on one rank: every block's and the root's parameters are shards, gathered when they are used.

Gather buffers live one block longer than they are needed, so that copying out of one overlaps the next; gradients
are reduced block by block into one buffer a block, of which the sharded gradients are views.

Source: torch/distributed/fsdp/_fully_shard/{_fsdp_param_group,_fsdp_collectives}.py; orders, sizes and streams
compared with allocator traces recorded on an H200 over a fake process group. What NCCL takes outside the allocator
is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from trainmem.tape import kernels
from trainmem.tape.core import Tape
from trainmem.tape.tensor import BUCKET, Gradients, Tensor

__all__ = ["GATHER_STREAM", "REDUCE_STREAM", "ShardedGroup", "Sharding", "before", "managed_order"]

GATHER_STREAM = 1
REDUCE_STREAM = 2


@dataclass(slots=True)
class ShardedGroup:
    """Parameters that are gathered and reduced together: a block's, or the root's."""

    prefix: str
    names: tuple[str, ...]
    full: list[Tensor] = field(default_factory=list)
    gathered: Tensor | None = None
    gradients: dict[str, Tensor] = field(default_factory=dict)


@dataclass(slots=True)
class Sharding:
    """All groups of a model on one rank.

    ``gather_itemsize`` and ``reduce_itemsize`` are bytes of an element in collectives; ``casts``: shards are
    cast to another dtype before they are gathered. ``reshards``: a block's parameters are freed after forward.
    ``alone``: on a single rank nothing is gathered; its shards are copied one by one.
    """

    tape: Tape
    gather_itemsize: int
    reduce_itemsize: int
    casts: bool
    reshards: bool
    alone: bool
    order: list[ShardedGroup] = field(default_factory=list)
    _pending: Tensor | None = None
    _reduced: Tensor | None = None

    def unshard(self, group: ShardedGroup) -> None:
        """Gather a group's parameters; the buffer of the group before it dies when this one is copied out."""
        if group.full:
            return
        if self.alone:
            self._copy_shards(group)
            return
        self._gather(group)
        self._copy_out(group)
        self._pending, group.gathered = group.gathered, None

    def reshard(self, group: ShardedGroup) -> None:
        """Free a group's whole parameters after its forward."""
        if self.reshards:
            group.full.clear()

    def end_forward(self) -> None:
        """The last gather buffer dies with the root's forward."""
        self._pending = None

    def before_backward(self, group: ShardedGroup) -> None:
        """Wait for a group's parameters and start to gather those of the group that comes next."""
        if self.alone:
            self.unshard(group)
            return
        if not group.full:
            if group.gathered is None:
                self._gather(group)
            self._copy_out(group)
            group.gathered = None
        place = self.order.index(group)
        if place > 0:
            following = self.order[place - 1]
            if not following.full and following.gathered is None:
                self._gather(following)

    def after_backward(self, group: ShardedGroup) -> None:
        """Free the whole parameters and reduce the gradients there are to this rank's share."""
        tape, names = self.tape, tuple(name for name in group.names if name in group.gradients)
        group.full.clear()
        self._reduced = None
        with tape.filling("communication"):
            self._reduced = tape.scratch(
                (kernels.sharded_whole, names, self.reduce_itemsize), "reduce-scatter input"
            )
            tape.scratch((kernels.chunk_cat_metadata, names, self.reduce_itemsize), "chunk_cat metadata")
        # a loop over several ranks' gradients leaves its variable bound to the last
        last = None if self.alone else group.gradients.pop(names[-1], None)
        group.gradients.clear()
        size = (kernels.sharded_part, names, self.reduce_itemsize)
        shard = tape.on_stream(REDUCE_STREAM, size, "reduce-scatter output", BUCKET["gradients"])
        del last
        if not tape.accumulating and shard.memory is not None:
            tape.gradients[group.prefix + names[0]] = shard.memory.key

    def end_backward(self) -> None:
        """The root's gradients are reduced last."""
        self.after_backward(self.order[-1])
        self._reduced = None

    def take_gradient(self, name: str, grad: Tensor) -> None:
        """A whole gradient waits for its group's reduction."""
        for group in self.order:
            local = name.removeprefix(group.prefix)
            if name.startswith(group.prefix) and local in group.names:
                group.gradients[local] = grad.alias()
                return

    def _gather(self, group: ShardedGroup) -> None:
        tape = self.tape
        bucket = BUCKET["communication"]
        share = (kernels.sharded_part, group.names, self.gather_itemsize)
        whole = (kernels.sharded_whole, group.names, self.gather_itemsize)
        cast = tape.on_stream(GATHER_STREAM, share, "all-gather input", bucket) if self.casts else None
        group.gathered = tape.on_stream(GATHER_STREAM, whole, "all-gather output", bucket)
        del cast

    def _copy_shards(self, group: ShardedGroup) -> None:
        tape = self.tape
        cast = None
        with tape.filling("communication"):
            for name in group.names:
                if self.casts:
                    cast = tape.alloc((f"p:{name}",), self.gather_itemsize, "shard cast")
                group.full.append(tape.alloc((f"p:{name}",), self.gather_itemsize, "gathered parameter"))
        del cast

    def _copy_out(self, group: ShardedGroup) -> None:
        """Every rank's shards of each parameter, padding included."""
        tape = self.tape
        with tape.filling("communication"):
            for name in group.names:
                whole = (kernels.sharded_whole, (name,), self.gather_itemsize)
                group.full.append(tape.scratch(whole, "gathered parameter"))
            metadata = (kernels.split_copy_metadata, group.names, self.gather_itemsize)
            tape.scratch(metadata, "split_with_sizes_copy metadata")


def managed_order(names: Sequence[str]) -> tuple[str, ...]:
    """Parameters in FSDP's order, which goes through modules children first (_fsdp_init._get_managed_modules)."""
    own: dict[str, list[str]] = {"": []}
    children: dict[str, list[str]] = {"": []}
    for name in names:
        owner, _, _ = name.rpartition(".")
        parts = owner.split(".") if owner else []
        for depth in range(1, len(parts) + 1):
            path, parent = ".".join(parts[:depth]), ".".join(parts[: depth - 1])
            if path not in own:
                own[path], children[path] = [], []
                children[parent].append(path)
        own[owner].append(name)

    def visited(path: str) -> list[str]:
        below = [name for child in children[path] for name in visited(child)]
        return below + own[path]

    return tuple(visited(""))


def before(tape: Tape, tensor: Tensor, run: Callable[[], None]) -> Tensor:
    """The same tensor; ``run`` is called when its gradient is known, before what made it runs backward."""

    def backward(tape: Tape, grads: Gradients, needs: Sequence[bool]) -> Gradients:
        run()
        grad: Tensor = grads[0]
        return [grad.alias()]

    out = tensor.alias()
    if tape.wants_grad(tensor):
        out.node = tape.node("fsdp hook", [tensor], backward)
    return out
