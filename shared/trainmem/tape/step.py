"""Three training steps of a job as a `Recording`: the program's parts laid out for every block and micro batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from math import prod

from trainmem.allocator import Stretch
from trainmem.buckets import BUCKETS
from trainmem.job import Lora, TrainingJob
from trainmem.model import Architecture
from trainmem.recording import Recording
from trainmem.tape.claims import fully_sharded, has_masters
from trainmem.tape.dims import dimensions
from trainmem.tape.ledger import LOADED_KEYS
from trainmem.tape.loading import Loaded, load, trainables
from trainmem.tape.loss_scaling import unscaled
from trainmem.tape.optimizers import Trainable, optimizer_step, rounding_of
from trainmem.tape.program import Part, PartLabel, Program, compiled, in_order
from trainmem.tape.stand_ins import StandIns
from trainmem.tape.structure import standing, structure_of, unit_size, weight_itemsize
from trainmem.tape.tensor import SizeSpec

__all__ = ["record", "record_by_step", "size_in_bytes", "updated"]

STEPS = 3
"""Steps recorded: state appears in the first, the allocator's blocks settle in the second, the third is steady."""

_WEIGHTS = BUCKETS.index("weights")
_GRADIENTS = BUCKETS.index("gradients")
_LOADED = "loaded"
_LOADED_PART = -1


def size_in_bytes(spec: SizeSpec, dims: Mapping[str, int]) -> int:
    """A symbolic size for one job."""
    head = spec[0]
    if callable(head):
        return int(head(dims, *spec[1:]))
    return int(head) * prod([dims[name] for name in spec[1:]])


@dataclass(slots=True)
class _Template:
    """A part with its sizes filled in, ready to be laid down at any block.

    ``code``: (size, -1) allocates; (rank, slot) frees an allocation of the part in that slot of ``homes``, or the
    loaded parameter that stands there. ``place``: by rank, which of the part's allocations it is.
    """

    code: list[tuple[int, int]]
    homes: list[PartLabel]
    buckets: list[int]
    names: list[str]
    streams: dict[int, int]
    place: list[int]
    placed: dict[tuple[int | None, ...], Stretch] = field(default_factory=dict)
    """``code`` with places for ranks, by the parts that stand in the slots; nothing is freed where there is None."""


@lru_cache(maxsize=64)
def _ranks(program: Program) -> list[int]:
    """By key, which of its part's allocations it is, without those that are made once.

    Equal blocks have the same ranks, whichever of them comes first and makes what is made once.
    """
    out: list[int] = []
    for part in program.parts:
        ranks = count()
        out += [-1 if key in program.once else next(ranks) for key in part.keys]
    return out


def _template(program: Program, part: Part, sizes: list[int], first: bool) -> _Template:
    """Fill in sizes; allocations of no bytes, and of the first step only in later ones, are left out."""
    code: list[tuple[int, int]] = []
    slots: dict[PartLabel, int] = {}
    made: list[int] = []
    ranks = _ranks(program)
    for event in part.events:
        key = event if event >= 0 else ~event
        if key >= LOADED_KEYS:
            if first:
                code.append((0, slots.setdefault((_LOADED, key - LOADED_KEYS), len(slots))))
        elif (size := sizes[program.size_of[key]]) <= 0:
            continue
        elif event < 0:
            home = program.parts[program.part_of[key]].label
            code.append((ranks[key], slots.setdefault(home, len(slots))))
        elif first or key not in program.once:
            code.append((size, -1))
            made.append(key)
    place = [-1] * len(part.keys)
    for number, key in enumerate(made):
        if ranks[key] >= 0:
            place[ranks[key]] = number
    return _Template(
        code=code,
        homes=list(slots),
        buckets=[program.bucket_of[key] for key in made],
        names=[program.name_of[key] for key in made],
        streams={
            number: program.stream_of[key] for number, key in enumerate(made) if key in program.stream_of
        },
        place=place,
    )


class _Layout:
    """Lays the parts of a program down for all of a model's blocks, and knows where each allocation went."""

    def __init__(
        self,
        recording: Recording,
        program: Program,
        stands: StandIns,
        unit: int,
        dims: Mapping[str, int],
        loaded: Loaded,
    ) -> None:
        self.recording = recording
        self.loaded = {name: number for number, _, name in loaded.biases}
        self.program = program
        self.stands = stands
        self.layers = len(stands.of)
        self.unit = unit
        self.sizes = [size_in_bytes(spec, dims) for spec in program.sizes]
        self._filled: dict[bool, list[_Template]] = {}
        self._templates: list[_Template] = []
        self._order = in_order(program, stands)
        self._laid: dict[PartLabel, tuple[int, int]] = {}
        """By direction and block of the model: the number of the first allocation, and of the part."""

    def micro_batch(self, step: int, micro: int) -> dict[str, int]:
        """Forward and backward of one micro batch; the numbers of the gradients it leaves, by parameter."""
        first = step == 1 and micro == 0
        if first not in self._filled:
            program, sizes = self.program, self.sizes
            self._filled[first] = [_template(program, part, sizes, first) for part in program.parts]
        self._templates = self._filled[first]
        phase = ""
        for number, real, last in self._order:
            direction, _ = self.program.parts[number].label
            if direction != phase:
                phase = direction
                self.recording.mark(step, "forward" if direction == "forward" else "backward", micro)
            self._lay(number, real, last=last)
        return self._gradients()

    def _lay(self, number: int, real: int, *, last: bool) -> None:
        """Lay one part down as the model's block ``real``; ``last``: of equal blocks."""
        recording, template = self.recording, self._templates[number]
        direction, block = self.program.parts[number].label
        start = len(recording.bucket_of)
        self._laid[direction, real] = start, number
        homes = [self._homes(block, real, last, *home) for home in template.homes]
        if all(len(home) <= 1 for home in homes):
            parts = tuple([home[0][1] if home else None for home in homes])
            bases = [home[0][0] if home else 0 for home in homes]
            self._placed(template, parts).lay(recording.events, bases)
        else:
            for value, slot in template.code:
                if slot < 0:
                    recording.events.append(value)
                else:
                    recording.events.extend([~(base + self._place(at)[value]) for base, at in homes[slot]])
        recording.bucket_of += template.buckets
        recording.op_of += template.names
        recording.stream_of.update({start + place: stream for place, stream in template.streams.items()})
        recording.module_of += [f"layers.{real}" if 0 <= real < self.layers else ""] * len(template.names)

    def _homes(self, block: int, real: int, last: bool, direction: str, home: int) -> list[tuple[int, int]]:
        """Where the allocations lie that a part, laid down as ``real``, frees of the part ``home``.

        Of a block that stands for several, the one whose turn comes last alone frees what the program shares with
        other parts: the tables and masks that all blocks of its kind use. What is freed of a block outside the
        blocks is freed of each that it stands for.
        """
        program = self.program
        if direction == _LOADED:
            return [(self.loaded[self._real_name(program.loaded[home], block, real)], _LOADED_PART)]
        if program.outside(block):
            return [self._laid[direction, each] for each in self._real(home)]
        if program.outside(home):
            return [self._laid[direction, each] for each in self._real(home)] if last else []
        return [self._laid[direction, real + home - block]]

    def _placed(self, template: _Template, parts: tuple[int | None, ...]) -> Stretch:
        if parts not in template.placed:
            places = [None if number is None else self._place(number) for number in parts]
            code: list[tuple[int, int]] = []
            for value, slot in template.code:
                place = [value] if slot < 0 else places[slot]
                if place is not None:
                    code.append((value if slot < 0 else place[value], slot))
            template.placed[parts] = Stretch(code)
        return template.placed[parts]

    def _place(self, part: int) -> list[int]:
        return self._templates[part].place if part != _LOADED_PART else [0]

    def _gradients(self) -> dict[str, int]:
        out: dict[str, int] = {}
        ranks = _ranks(self.program)
        for name, key in self.program.gradients.items():
            direction, block = self.program.parts[self.program.part_of[key]].label
            for real in self._real(block):
                base, number = self._laid[direction, real]
                out.setdefault(self._real_name(name, block, real), base + self._place(number)[ranks[key]])
        return out

    def _real(self, block: int) -> tuple[int, ...]:
        return self.program.real_blocks(block, self.stands)

    def _real_name(self, name: str, block: int, real: int) -> str:
        """A parameter of a block of the program, in the model's block ``real``."""
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
    stands, unit = standing(job, architecture), unit_size(job, architecture)
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
    fresh = _Layout(recording, compiled(structure_of(job, architecture)), stands, unit, dims, loaded)
    adding = fresh
    if job.accumulation > 1 or job.zero_grad == "zeros":
        adding = _Layout(
            recording,
            compiled(structure_of(job, architecture, accumulating=True)),
            stands,
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
