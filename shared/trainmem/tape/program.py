"""One step's forward and backward, recorded once per structure and evaluated for any sizes.

Two jobs of one family under the same levers allocate in the same order; only the sizes differ. `compiled` runs
the tiny autograd once for such a `Structure`, with a few blocks standing for all, and keeps the events of each
part: what comes before the blocks, each block forward, the head, each block backward, and the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TypeAlias

from trainmem.tape import ops
from trainmem.tape.core import SizeSpec, Tape, Tensor
from trainmem.tape.families import FORWARD
from trainmem.tape.fully_sharded import before
from trainmem.tape.loss_scaling import scale_and_growth
from trainmem.tape.model import Model, Structure

__all__ = ["LOADED", "Allocation", "Part", "PartLabel", "Program", "compiled"]

PartLabel: TypeAlias = tuple[str, int]
"""("forward" | "backward", block): block -1 stands before the blocks, the number of blocks after them."""

Allocation: TypeAlias = tuple[int, int]
"""(part, ordinal in the part): the same for the same tensor of equal blocks."""

LOADED = -1
"""In place of a part: the ordinal counts `Program.loaded`, parameters that the first step frees."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """The events of one part of a step.

    ``events``: a number >= 0 is the ordinal of an allocation of this part; otherwise ``~index`` into ``frees``.
    ``sizes``, ``buckets`` and ``names`` are indexed by ordinal; ``once`` holds ordinals of the first step only.
    """

    label: PartLabel
    events: tuple[int, ...]
    frees: tuple[Allocation, ...]
    sizes: tuple[int, ...]
    buckets: tuple[int, ...]
    names: tuple[str, ...]
    streams: tuple[int, ...]
    once: frozenset[int]


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """The parts of one micro batch in order, their distinct sizes, and where each gradient ends up.

    ``period`` blocks from the third on stand for all inner ones; 0 where every block is shown.
    """

    blocks: int
    period: int
    parts: tuple[Part, ...]
    sizes: tuple[SizeSpec, ...]
    gradients: dict[str, Allocation]
    loaded: tuple[str, ...] = ()

    def repeats(self, block: int) -> bool:
        """Whether this block stands for several of the model's."""
        return REPEATED_FROM <= block < REPEATED_FROM + self.period

    def outside(self, block: int) -> bool:
        """Whether this part lies before or after the blocks."""
        return not 0 <= block < self.blocks

    def passes(self, layers: int) -> int:
        """How often the repeated blocks run in a model of so many."""
        return 1 + (layers - self.blocks) // self.period if self.period else 1

    def groups(self) -> list[tuple[str, list[int]]]:
        """(direction, numbers of parts) in order, parts that repeat together in one group."""
        out: list[tuple[str, list[int]]] = []
        before = False
        for index, part in enumerate(self.parts):
            direction, block = part.label
            repeats = self.repeats(block)
            if repeats and before:
                out[-1][1].append(index)
            else:
                out.append((direction, [index]))
            before = repeats
        return out

    def real_blocks(self, block: int, layers: int) -> range:
        """The model's blocks for which a block stands; -1 and the number of blocks for what lies outside."""
        if block < REPEATED_FROM:
            return range(block, block + 1)
        if self.repeats(block):
            end = block + self.passes(layers) * self.period
            return range(block, end, self.period)
        last = layers - self.blocks + block
        return range(last, last + 1)


REPEATED_FROM = 2
"""The first block that may stand for several."""


@lru_cache(maxsize=1024)
def compiled(structure: Structure) -> Program:
    """Run the tiny autograd over ``structure`` and cut its events into parts."""
    tape = Tape()
    tape.accumulating = structure.accumulating
    tape.wide_gradients = structure.wide_gradients
    tape.many_rows = structure.many_rows
    tape.grouped_products = structure.grouped_products
    tape.ones = structure.ones
    tape.frequency_checks = structure.frequency_checks
    model = Model(tape, structure)
    tape.block = -1
    tape.boundary(("forward", -1))
    sharding = model.sharding
    if sharding is not None:
        tape.on_gradient = sharding.take_gradient
        sharding.unshard(sharding.order[-1])
    if structure.autocast:
        with tape.autocasting(structure.autocast):
            loss: Tensor = FORWARD[structure.family](model)
    else:
        loss = FORWARD[structure.family](model)
    if sharding is not None:
        root = sharding.order[-1]
        sharding.reshard(root)
        sharding.end_forward()
        loss = before(tape, loss, partial(sharding.before_backward, root))
    if structure.scaled_loss:
        with tape.filling("logits"):
            loss = ops.scale(tape, loss, "loss / accumulation")
    tape.end_forward()
    tape.boundary(("backward", structure.units))
    tape.block = structure.units
    if structure.loss_scaling:
        scale_and_growth(tape)
        with tape.filling("logits"):
            scaled = ops.scale(tape, loss, "loss scaling")
            held, loss = loss.alias(), scaled
            del scaled
    else:
        held = None
    gradient = tape.alloc((), loss.itemsize, "gradient of the loss")
    tape.backward(loss, gradient)
    if tape.block != -1:
        # what the graph held dies outside the blocks, so that it dies of every block that one stands for
        tape.block = -1
        tape.boundary(("backward", -1))
    if sharding is not None:
        sharding.end_backward()
    tape.graph_attributes.clear()
    del gradient, loss, held
    codes = list(tape.codes)
    gradients = {name: tensor.storage.key for name, tensor in tape.gradients.items() if tensor.storage}
    program = _cut(tape, codes, gradients, structure)
    tape.release()
    model.blocks.clear()
    return program


def _cut(
    tape: Tape, codes: list[tuple[int, object]], gradients: dict[str, int], structure: Structure
) -> Program:
    home: list[Allocation] = []
    loaded: list[str] = []
    cut: list[tuple[PartLabel, list[int], list[Allocation], int]] = []
    events: list[int] = []
    frees: list[Allocation] = []
    start = 0
    for kind, value in codes:
        if kind == 0:
            # keys count up, so that those of a part follow each other
            ordinal = len(home) - start
            home.append((len(cut) - 1, ordinal))
            events.append(ordinal)
        elif kind == 1:
            events.append(~len(frees))
            frees.append(home[value])  # type: ignore[call-overload]
        elif kind == 3:
            events.append(~len(frees))
            frees.append((LOADED, len(loaded)))
            loaded.append(value)  # type: ignore[arg-type]
        else:
            events, frees, start = [], [], len(home)
            cut.append((value, events, frees, start))  # type: ignore[arg-type]
    distinct: dict[SizeSpec, int] = {}
    number = [distinct.setdefault(spec, len(distinct)) for spec in tape.size_of]
    ends = [start for _, _, _, start in cut[1:]] + [len(home)]
    parts = tuple(
        Part(
            label=label,
            events=tuple(events),
            frees=tuple(frees),
            sizes=tuple(number[start:end]),
            buckets=tuple(tape.bucket_of[start:end]),
            names=tuple(tape.name_of[start:end]),
            streams=tuple(tape.stream_of[start:end]),
            once=frozenset(key - start for key in tape.once if start <= key < end),
        )
        for (label, events, frees, start), end in zip(cut, ends, strict=True)
    )
    return Program(
        blocks=structure.units,
        period=structure.period,
        parts=parts,
        sizes=tuple(distinct),
        gradients={name: home[key] for name, key in gradients.items()},
        loaded=tuple(loaded),
    )
