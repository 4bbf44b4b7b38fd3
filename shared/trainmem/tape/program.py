"""One step's forward and backward, recorded once per structure and evaluated for any sizes.

Two jobs of one family under the same levers allocate in the same order; only the sizes differ. `compiled` runs
the tiny autograd once for such a `Structure`, with a few blocks standing for all, and keeps the events of each
part: what comes before the blocks, each block forward, the head, each block backward, and the rest.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import count
from operator import add
from typing import Any, Literal, TypeAlias

from trainmem.tape import ops
from trainmem.tape.core import Tape
from trainmem.tape.engine import run_backward
from trainmem.tape.families import FORWARD
from trainmem.tape.fully_sharded import before
from trainmem.tape.loss_scaling import scale_and_growth
from trainmem.tape.model import Model, Structure
from trainmem.tape.stand_ins import StandIns
from trainmem.tape.tensor import BUCKET, SizeSpec, Tensor

__all__ = ["Part", "PartLabel", "Program", "compiled", "in_order"]

_GRADIENTS = BUCKET["gradients"]

PartLabel: TypeAlias = tuple[str, int]
"""(run, block): block -1 stands before the blocks, the number of blocks after them.

A run is "forward" or "backward". Of blocks that are checkpointed as one segment, backward is what comes before the
first saved tensor is asked for, and "after" what remains of it. In between, the last block of a segment lets all of
its blocks run "again", and the casts of the weights of each be "cleared".
"""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """The events of one part of a step.

    ``events``: a number >= 0 is the key of what is allocated, ``~key`` frees it; keys from `LOADED_KEYS` on count
    `Program.loaded`, parameters that the first step frees. ``keys``: of the allocations that the part makes.
    """

    label: PartLabel
    events: tuple[int, ...]
    keys: range

    @property
    def phase(self) -> Literal["forward", "backward"]:
        """Of the step."""
        return "forward" if self.label[0] == "forward" else "backward"


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """The parts of one micro batch in order, what each allocates, and where each gradient ends up.

    ``blocks``: how many blocks were run, which stand for all of a model's (`trainmem.tape.stand_ins`).
    ``sizes``: the distinct ones. By key: the number of the size, the bucket, the op, the number of the part;
    ``stream_of`` holds streams other than 0, ``once`` keys of the first step only.
    """

    blocks: int
    parts: tuple[Part, ...]
    sizes: tuple[SizeSpec, ...]
    size_of: tuple[int, ...]
    bucket_of: tuple[int, ...]
    name_of: tuple[str, ...]
    part_of: tuple[int, ...]
    stream_of: dict[int, int]
    once: frozenset[int]
    gradients: dict[str, int]
    loaded: tuple[str, ...]

    def outside(self, block: int) -> bool:
        """Whether this part lies before or after the blocks."""
        return not 0 <= block < self.blocks

    def real_blocks(self, block: int, stands: StandIns) -> tuple[int, ...]:
        """The model's blocks for which a block stands; -1 and the number of blocks for what lies outside."""
        if block < 0:
            return (block,)
        return stands.blocks[block] if block < self.blocks else (len(stands.of),)


@lru_cache(maxsize=1024)
def in_order(program: Program, stands: StandIns) -> tuple[tuple[int, int, bool], ...]:
    """The parts of a micro batch in order: (number, block of the model that it is laid down for, whether last).

    Last is the one of equal blocks whose turn comes last.
    """
    number = {part.label: index for index, part in enumerate(program.parts)}
    beyond = (len(stands.of), program.blocks)
    row = [("forward", real, block) for real, block in ((-1, -1), *enumerate(stands.of), beyond)]
    row.append(("backward", *beyond))
    for segment in reversed(stands.segments):
        blocks = [(real, stands.of[real]) for real in segment]
        row.append(("backward", *blocks[-1]))
        row += [(run, real, block) for run in ("again", "cleared") for real, block in blocks]
        row.append(("after", *blocks[-1]))
        row += [(run, real, block) for real, block in blocks[-2::-1] for run in ("backward", "after")]
    row.append(("backward", -1, -1))
    order = [(number[run, block], real) for run, real, block in row if (run, block) in number]
    last = {part: at for at, (part, _) in enumerate(order)}
    return tuple([(part, real, last[part] == at) for at, (part, real) in enumerate(order)])


@lru_cache(maxsize=1024)
def compiled(structure: Structure) -> Program:
    """The program of ``structure``.

    Where gradients exist already the same tensors die that are kept where none do, so that one run tells both.
    """
    if not structure.accumulating:
        return _kept(*_run(structure)[:2])
    program, _, tells_both = _run(replace(structure, accumulating=False))
    return program if tells_both else _run(structure)[0]


def _kept(program: Program, gradients: dict[str, int]) -> Program:
    """The program with its gradients kept."""
    never = {~key for key in gradients.values()}
    bucket_of = list(program.bucket_of)
    for key in gradients.values():
        bucket_of[key] = _GRADIENTS
    parts = [
        Part(part.label, tuple([event for event in part.events if event not in never]), part.keys)
        if part.phase == "backward"
        else part
        for part in program.parts
    ]
    return replace(program, parts=tuple(parts), bucket_of=tuple(bucket_of), gradients=gradients)


@lru_cache(maxsize=1024)
def _run(structure: Structure) -> tuple[Program, dict[str, int], bool]:
    """Run the tiny autograd over ``structure`` and cut its events into parts.

    The program as if no gradient were kept, the keys of those that are, and whether it is also the one of gradients
    that exist already: an fp32 gradient is not made again, and a tensor that is no gradient may be summed into.
    """
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
    tape.block = len(model.blocks)
    tape.boundary(("backward", tape.block))
    if structure.loss_scaling:
        scale_and_growth(tape)
        with tape.filling("logits"):
            scaled = ops.scale(tape, loss, "loss scaling")
            held, loss = loss.alias(), scaled
            del scaled
    else:
        held = None
    gradient = tape.alloc((), loss.itemsize, "gradient of the loss")
    run_backward(tape, loss, gradient)
    if tape.block != -1:
        # what the graph held dies outside the blocks, so that it dies of every block that one stands for
        tape.block = -1
        tape.boundary(("backward", -1))
    if sharding is not None:
        sharding.end_backward()
    tape.graph_attributes.clear()
    del gradient, loss, held
    program, gradients = _cut(tape, len(model.blocks)), dict(tape.gradients)
    tape.release()
    model.blocks.clear()
    return program, gradients, not (structure.wide_gradients or tape.kept_owns)


def _cut(tape: Tape, blocks: int) -> Program:
    codes, made = tape.codes, tape.made
    heads, rests, prefixes, ops_of = zip(*made, strict=True)
    number: defaultdict[tuple[Any, tuple[Any, ...]], int] = defaultdict(count().__next__)
    size_of = tuple(map(number.__getitem__, zip(heads, rests, strict=True)))
    parts: list[Part] = []
    part_of: list[int] = []
    ends = [(at, key) for at, key, _ in tape.boundaries[1:]] + [(len(codes), len(made))]
    for (begin, first, label), (end, last) in zip(tape.boundaries, ends, strict=True):
        # keys count up, so that those of a part follow each other
        part_of += [len(parts)] * (last - first)
        parts.append(Part(label, tuple(codes[begin:end]), range(first, last)))
    return Program(
        blocks=blocks,
        parts=tuple(parts),
        sizes=tuple([(head, *rest) for head, rest in number]),
        size_of=size_of,
        bucket_of=tuple(tape.bucket_of),
        name_of=tuple(map(add, prefixes, ops_of)),
        part_of=tuple(part_of),
        stream_of=dict(tape.stream_of),
        once=frozenset(tape.once),
        gradients={},
        loaded=tuple(tape.loaded),
    )
