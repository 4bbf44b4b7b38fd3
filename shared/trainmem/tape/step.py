"""Three training steps of a job as a `Recording`: the program's parts laid out for every block and micro batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from math import prod

from trainmem.buckets import BUCKETS
from trainmem.job import Lora, TrainingJob
from trainmem.model import Architecture
from trainmem.recording import Recording
from trainmem.tape.claims import fully_sharded, has_masters
from trainmem.tape.core import SizeSpec
from trainmem.tape.dims import dimensions
from trainmem.tape.loading import Loaded, load, trainables
from trainmem.tape.loss_scaling import unscaled
from trainmem.tape.optimizers import Trainable, optimizer_step, rounding_of
from trainmem.tape.program import LOADED, Part, PartLabel, Program, compiled
from trainmem.tape.structure import structure_of, unit_size, weight_itemsize

__all__ = ["record", "record_by_step", "size_in_bytes", "updated"]

STEPS = 3
"""Steps recorded: state appears in the first, the allocator's blocks settle in the second, the third is steady."""

_WEIGHTS = BUCKETS.index("weights")
_GRADIENTS = BUCKETS.index("gradients")
_LOADED = "loaded"


def size_in_bytes(spec: SizeSpec, dims: Mapping[str, int]) -> int:
    """A symbolic size for one job."""
    head = spec[0]
    if callable(head):
        return int(head(dims, *spec[1:]))
    return int(head) * prod([dims[name] for name in spec[1:]])


@dataclass(slots=True)
class _Template:
    """A part with its sizes filled in, ready to be laid down at any block.

    ``code``: (size, -1) allocates; (ordinal, slot) frees an allocation of the part in that slot of ``homes``, or
    the loaded parameter that stands there.
    """

    code: list[tuple[int, int]]
    homes: list[PartLabel]
    buckets: list[int]
    names: list[str]
    streams: list[int]
    place: list[int]


def _templates(program: Program, sizes: list[int], first: bool) -> list[_Template]:
    """Fill in sizes; allocations of no bytes, and of the first step only in later ones, are left out."""
    templates: list[_Template] = []
    for part in program.parts:
        place, buckets, names, streams, count = [], [], [], [], 0
        for ordinal, size in enumerate(part.sizes):
            if sizes[size] <= 0 or (ordinal in part.once and not first):
                place.append(-1)
                continue
            place.append(count)
            buckets.append(part.buckets[ordinal])
            names.append(part.names[ordinal])
            streams.append(part.streams[ordinal])
            count += 1
        templates.append(_Template([], [], buckets, names, streams, place))
    for part, template in zip(program.parts, templates, strict=True):
        slots: dict[PartLabel, int] = {}
        code = template.code
        for event in part.events:
            if event >= 0:
                if template.place[event] >= 0:
                    code.append((sizes[part.sizes[event]], -1))
            else:
                home, ordinal = part.frees[~event]
                if home == LOADED:
                    if first:
                        code.append((0, slots.setdefault((_LOADED, ordinal), len(slots))))
                    continue
                at = templates[home].place[ordinal]
                if at >= 0:
                    code.append((at, slots.setdefault(program.parts[home].label, len(slots))))
        template.homes = list(slots)
    return templates


class _Layout:
    """Lays the parts of a program down for all of a model's blocks, and knows where each allocation went."""

    def __init__(
        self,
        recording: Recording,
        program: Program,
        layers: int,
        unit: int,
        dims: Mapping[str, int],
        loaded: Loaded,
    ) -> None:
        self.recording = recording
        self.loaded = {name: number for number, _, name in loaded.biases}
        self.program = program
        self.layers = -(-layers // unit)
        self.unit = unit
        self.sizes = [size_in_bytes(spec, dims) for spec in program.sizes]
        self._templates: dict[bool, list[_Template]] = {}
        self._groups = program.groups()
        self._base: dict[PartLabel, int] = {}

    def micro_batch(self, step: int, micro: int) -> dict[str, int]:
        """Forward and backward of one micro batch; the numbers of the gradients it leaves, by parameter."""
        first = step == 1 and micro == 0
        if first not in self._templates:
            self._templates[first] = _templates(self.program, self.sizes, first)
        templates = self._templates[first]
        phase = ""
        for direction, group in self._groups:
            if direction != phase:
                phase = direction
                self.recording.mark(step, "forward" if direction == "forward" else "backward", micro)
            self._lay_group(direction, group, templates)
        return self._gradients(templates)

    def _lay_group(self, direction: str, group: list[int], templates: list[_Template]) -> None:
        """One part, or the repeated parts as often as the model has them."""
        blocks = [
            self.program.real_blocks(self.program.parts[index].label[1], self.layers) for index in group
        ]
        passes = len(blocks[0])
        for number in reversed(range(passes)) if direction == "backward" else range(passes):
            last = number == (0 if direction == "backward" else passes - 1)
            for index, real in zip(group, blocks, strict=True):
                self._lay(self.program.parts[index], templates[index], real[number], last=last)

    def _lay(self, part: Part, template: _Template, real: int, *, last: bool) -> None:
        """Lay one part down as block ``real``.

        ``last``: of a block that stands for several, the one whose turn comes last. It alone frees what the
        program shares with other parts: the tables and masks that all blocks of its kind use.
        """
        recording, program = self.recording, self.program
        direction, block = part.label
        self._base[(direction, real)] = len(recording.bucket_of)
        bases: list[int] = []
        others: dict[int, list[int]] = {}
        shared: set[int] = set()
        for slot, (home_direction, home) in enumerate(template.homes):
            if home_direction == _LOADED:
                bases.append(self.loaded[self._real_name(program.loaded[home], block, real)])
                continue
            where = program.real_blocks(home, self.layers)[0]
            if program.outside(home):
                shared.add(slot)
            elif not program.outside(block):
                where = real + home - block
            elif program.repeats(home):
                # a repeated block stands for all of its kind: what is freed of it here is freed of each of them
                inner = program.real_blocks(home, self.layers)[1:]
                others[slot] = [self._base[(home_direction, number)] for number in inner]
            bases.append(self._base[(home_direction, where)])
        skipped = set() if last else shared
        events = recording.events
        if others:
            for value, slot in template.code:
                events.append(value if slot < 0 else ~(bases[slot] + value))
                events += [~(base + value) for base in others.get(slot, ())]
        else:
            events += [
                value if slot < 0 else ~(bases[slot] + value)
                for value, slot in template.code
                if slot not in skipped
            ]
        recording.bucket_of += template.buckets
        recording.op_of += template.names
        if any(template.streams):
            recording.stream_of.update(
                (self._base[(direction, real)] + ordinal, stream)
                for ordinal, stream in enumerate(template.streams)
                if stream
            )
        recording.module_of += [f"layers.{real}" if 0 <= real < self.layers else ""] * len(template.names)

    def _gradients(self, templates: list[_Template]) -> dict[str, int]:
        out: dict[str, int] = {}
        for name, (home, ordinal) in self.program.gradients.items():
            at = templates[home].place[ordinal]
            direction, block = self.program.parts[home].label
            for real in self.program.real_blocks(block, self.layers):
                out.setdefault(self._real_name(name, block, real), self._base[(direction, real)] + at)
        return out

    def _real_name(self, name: str, block: int, real: int) -> str:
        """A parameter of a block that stands for several, in block ``real``."""
        if not name.startswith("layers."):
            return name
        _, number, local = name.split(".", 2)
        return f"layers.{int(number) + (real - block) * self.unit}.{local}"


def record(job: TrainingJob, architecture: Architecture) -> Recording:
    """Build the recording of three steps of ``job``."""
    *_, recording = record_by_step(job, architecture)
    return recording


def record_by_step(job: TrainingJob, architecture: Architecture) -> Iterator[Recording]:
    """The recording of three steps as it grows: the same one after the model is loaded and after every step."""
    recording = Recording()
    dims = dimensions(job, architecture)
    layers, unit = architecture.layers, unit_size(job, architecture)
    recording.mark(0, "setup")
    loaded = load(recording, job, architecture, recording.empty_cache)
    recording.parameters = loaded.parameters
    recording.trainable_parameters = loaded.trainable_parameters
    masters = has_masters(job)
    ranks = job.sharding.data_parallel if fully_sharded(job) else 0
    parameters = updated(architecture, job.lora, 4 if masters else weight_itemsize(job), ranks)
    recording.allocate(job.micro_batch * job.sequence_length * 8, _WEIGHTS, "token ids")
    if job.task == "sequence_classification":
        recording.allocate(job.micro_batch * 8, _WEIGHTS, "labels")

    # The measuring harness hands idle memory back before the first step.
    recording.empty_cache()
    yield recording
    fresh = _Layout(recording, compiled(structure_of(job, architecture)), layers, unit, dims, loaded)
    adding = fresh
    if job.accumulation > 1 or job.zero_grad == "zeros":
        adding = _Layout(
            recording,
            compiled(structure_of(job, architecture, accumulating=True)),
            layers,
            unit,
            dims,
            loaded,
        )
    narrow = masters and job.precision == "bf16_master"
    held: dict[str, int] = {}
    wide: dict[str, int] = {}
    for step in range(1, STEPS + 1):
        for micro in _shown_micro_batches(job.accumulation):
            if held:
                adding.micro_batch(step, micro)
            else:
                held = fresh.micro_batch(step, micro)
        recording.mark(step, "optimizer")
        if narrow:
            wide = _widen(recording, parameters, held, wide)
            held = {}
        scaled = job.precision == "amp_fp16"
        with unscaled(recording, fused=job.optimizer == "adamw_fused") if scaled else nullcontext():
            optimizer_step(job.optimizer, recording, parameters, step == 1, dims, rounding_of(job))
        recording.mark(step, "zero_grad")
        if job.zero_grad == "none":
            for p in parameters:
                recording.free(held.get(p.name, -1))
                recording.free(wide.get(p.name, -1))
            held, wide = {}, {}
        yield recording


def updated(
    architecture: Architecture, lora: Lora | None, itemsize: int, ranks: int
) -> tuple[Trainable, ...]:
    """Of what trains, the tensors that get gradients, which alone the optimizer updates."""
    unused = architecture.extra.get("without_gradient")
    return tuple(p for p in trainables(architecture, lora, itemsize, ranks) if p.name != unused)


def _shown_micro_batches(accumulation: int) -> list[int]:
    """The first three micro batches and the last: those between repeat the third, block for block."""
    return sorted({*range(min(accumulation, 3)), accumulation - 1})


def _widen(
    recording: Recording, parameters: tuple[Trainable, ...], held: dict[str, int], before: dict[str, int]
) -> dict[str, int]:
    """Each 16-bit gradient becomes the fp32 one of its master, whose last one dies, and is freed."""
    out: dict[str, int] = {}
    for p in parameters:
        if p.name in held:
            out[p.name] = recording.allocate(p.size_bytes, _GRADIENTS, "master gradient", p.name)
            recording.free(before.get(p.name, -1))
            recording.free(held[p.name])
    return out
