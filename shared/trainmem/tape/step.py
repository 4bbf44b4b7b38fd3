"""Three training steps of a job as a `Recording`: the program's parts laid out for every block and micro batch."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from trainmem.allocator import ALLOCATED, ALLOCATED_ONCE, Laid
from trainmem.buckets import BUCKETS
from trainmem.job import BaseQuantization, Lora, Precision, Sharding, TrainingJob
from trainmem.model import Architecture
from trainmem.recording import Mark, Recording
from trainmem.tape.claims import fully_sharded, has_masters
from trainmem.tape.dims import dimensions
from trainmem.tape.loading import Loaded, load, trainables
from trainmem.tape.loss_scaling import unscaled
from trainmem.tape.optimizers import Trainable, optimizer_step, rounding_of
from trainmem.tape.program import Part, Program, compiled
from trainmem.tape.rows import made_once, program_row
from trainmem.tape.stand_ins import StandIns
from trainmem.tape.structure import standing, structure_of, weight_itemsize
from trainmem.tape.tensor import SizeSpec

__all__ = ["record", "record_by_step", "size_in_bytes", "updated"]

STEPS = 3
"""Steps recorded: state appears in the first, the allocator's blocks settle in the second, the third is steady."""

_WEIGHTS = BUCKETS.index("weights")
_GRADIENTS = BUCKETS.index("gradients")
_NOWHERE = (-1, -1)


def size_in_bytes(spec: SizeSpec, dims: Mapping[str, int]) -> int:
    """A symbolic size for one job."""
    head = spec[0]
    if callable(head):
        return int(head(dims, *spec[1:]))
    return int(head) * prod([dims[name] for name in spec[1:]])


class _Layout:
    """Lays a program down micro batch after micro batch, with the sizes of a job."""

    def __init__(
        self,
        recording: Recording,
        program: Program,
        stands: StandIns,
        dims: Mapping[str, int],
        parameters: Sequence[Trainable],
    ) -> None:
        self.recording = recording
        self.program = program
        self.layers = len(stands.of)
        self.row = program_row(program, stands)
        self.sizes = array("q", [size_in_bytes(spec, dims) for spec in program.sizes])
        self._made: dict[tuple[int, int], _Made] = {}
        self._gradients = [self.row.gradients.get(p.name, _NOWHERE) for p in parameters]

    def micro_batch(self, step: int, micro: int, loaded: Mapping[str, int]) -> Laid:
        """Forward and backward of one micro batch; ``loaded``: the numbers of parameters by name."""
        first = step == 1 and micro == 0
        recording, begin = self.recording, len(self.recording.events)
        recording.mark(step, "forward", micro)
        given = [loaded[name] for name in self.row.given] if first else []
        laid = self.row.row.lay(recording.events, self.sizes, recording.allocations, given=given, first=first)
        recording.marks.append(Mark(begin + laid.begins[self.row.backward], step, "backward", micro))
        if recording.is_named or self.program.stream_of:
            self._label(laid, first)
        if not recording.is_named:
            recording.unnamed = laid.starts[-1]
            if first:
                recording.workspace = self._first_workspace(laid)
        return laid

    def gradients(self, laid: Laid) -> list[int]:
        """The numbers of the gradients that a micro batch leaves, by parameter; -1 where it leaves none."""
        starts, ranks, before = laid.starts, laid.ranks, laid.before
        return [
            -1 if place < 0 else starts[place] + before[ranks[place] + rank]
            for place, rank in self._gradients
        ]

    def _label(self, laid: Laid, first: bool) -> None:
        """Say what was laid down."""
        recording, made = self.recording, self._made
        levels = self.row.row.levels if first else [0] * len(self.row.places)
        for place, ((number, real), level) in enumerate(zip(self.row.places, levels, strict=True)):
            if (number, level) not in made:
                made[number, level] = self._allocations(self.program.parts[number], level)
            found = made[number, level]
            for at, stream in found.streams.items():
                recording.stream_of[laid.starts[place] + at] = stream
            if recording.is_named:
                recording.bucket_of += found.buckets
                recording.op_of += found.names
                module = f"layers.{real}" if 0 <= real < self.layers else ""
                recording.module_of += [module] * len(found.names)

    def _keys(self, part: Part, level: int) -> list[int]:
        """What a part allocates at a place of a level (`Row.levels`), in order: nothing of no bytes."""
        size_of, sizes = self.program.size_of, self.sizes
        keys = [key for key in part.keys if sizes[size_of[key]] > 0]
        once = made_once(self.program)
        return [key for key in keys if ~once.get(key, ALLOCATED) <= level] if once else keys

    def _allocations(self, part: Part, level: int) -> _Made:
        program, keys = self.program, self._keys(part, level)
        return _Made(
            [program.bucket_of[key] for key in keys],
            [program.name_of[key] for key in keys],
            {at: program.stream_of[key] for at, key in enumerate(keys) if key in program.stream_of},
        )

    def _first_workspace(self, laid: Laid) -> int:
        """The number of the first that a first row made; -1 where it made none."""
        row, once = self.row, made_once(self.program)
        workspaces = {key for key, level in once.items() if level == ALLOCATED_ONCE}
        for place, ((number, _), level) in enumerate(zip(row.places, row.row.levels, strict=True)):
            part = self.program.parts[number]
            if not workspaces.isdisjoint(part.keys):
                for at, key in enumerate(self._keys(part, level)):
                    if key in workspaces:
                        return laid.starts[place] + at
        return -1


@dataclass(frozen=True, slots=True)
class _Made:
    """What a part allocates, in order; ``streams`` are those other than the default, by place in it."""

    buckets: list[int]
    names: list[str]
    streams: dict[int, int]


def record(job: TrainingJob, architecture: Architecture) -> Recording:
    """Build the recording of three steps of ``job``."""
    *_, recording = record_by_step(job, architecture)
    return recording


def record_by_step(
    job: TrainingJob, architecture: Architecture, *, is_named: bool = True, from_host: bool = False
) -> Iterator[Recording]:
    """The recording of three steps as it grows: the same one after the model is loaded and after every step.

    ``is_named``: with what `Recording` then says of every allocation; without it, the model may come ``from_host``,
    packed weight by weight there, so that loading it never takes more than it leaves.
    """
    dims = dimensions(job, architecture)
    stands = standing(job, architecture)
    recording, loaded = _loaded(
        architecture, job.lora, job.base_quantization, job.precision, job.sharding, job.device, is_named
    )
    if from_host:
        recording, loaded = _piece_by_piece(recording, loaded)
    recording = recording.copy()
    masters = has_masters(job)
    ranks = job.sharding.data_parallel if fully_sharded(job) else 0
    parameters = updated(architecture, job.lora, 4 if masters else weight_itemsize(job), ranks)
    recording.allocate(job.micro_batch * job.sequence_length * 8, _WEIGHTS, "token ids")
    if job.task == "sequence_classification":
        recording.allocate(job.micro_batch * 8, _WEIGHTS, "labels")

    if not from_host:
        # The measuring harness hands idle memory back before the first step.
        recording.empty_cache()
    yield recording
    fresh = _Layout(recording, compiled(structure_of(job, architecture)), stands, dims, parameters)
    adding = fresh
    if job.accumulation > 1 or job.zero_grad == "zeros":
        adding = _Layout(
            recording, compiled(structure_of(job, architecture, accumulating=True)), stands, dims, ()
        )
    numbers = {name: number for number, _, name in loaded.biases}
    narrow = masters and job.precision == "bf16_master"
    held: list[int] = []
    wide: list[int] = []
    for step in range(1, STEPS + 1):
        for micro in _shown_micro_batches(job.accumulation):
            if held:
                adding.micro_batch(step, micro, numbers)
            else:
                held = fresh.gradients(fresh.micro_batch(step, micro, numbers))
        recording.mark(step, "optimizer")
        if narrow:
            wide = _widen(recording, parameters, held, wide)
            held = []
        scaled = job.precision == "amp_fp16"
        with unscaled(recording, fused=job.optimizer == "adamw_fused") if scaled else nullcontext():
            optimizer_step(job.optimizer, recording, parameters, step == 1, dims, rounding_of(job))
        recording.mark(step, "zero_grad")
        if job.zero_grad == "none":
            recording.free_all(wide if narrow else held)
            held, wide = [], []
        yield recording


@lru_cache(maxsize=32)
def _loaded(
    architecture: Architecture,
    lora: Lora | None,
    quantization: BaseQuantization,
    precision: Precision,
    sharding: Sharding,
    device: str,
    is_named: bool,
) -> tuple[Recording, Loaded]:
    """The recording of the model on the device, which jobs of other batches, lengths and optimizers share."""
    recording = Recording(is_named=is_named)
    recording.mark(0, "setup")
    job = TrainingJob(
        model=architecture.family,
        lora=lora,
        base_quantization=quantization,
        precision=precision,
        sharding=sharding,
        device=device,
    )
    loaded = load(recording, job, architecture, recording.empty_cache)
    recording.parameters = loaded.parameters
    recording.trainable_parameters = loaded.trainable_parameters
    return recording, loaded


def _piece_by_piece(recording: Recording, loaded: Loaded) -> tuple[Recording, Loaded]:
    """A load without what it frees again; of an unnamed recording."""
    freed = {~event for event in recording.events if event < 0}
    kept = [number for number in range(recording.allocations) if number not in freed]
    sizes = [event for event in recording.events if event > 0]
    number_of = {number: index for index, number in enumerate(kept)}
    packed = replace(
        recording,
        events=array("q", [sizes[number] for number in kept]),
        stream_of={
            number_of[each]: stream for each, stream in recording.stream_of.items() if each in number_of
        },
        empty_cache_before=[],
        unnamed=len(kept),
    )
    biases = tuple([(number_of[number], numel, name) for number, numel, name in loaded.biases])
    return packed, replace(loaded, biases=biases)


def updated(
    architecture: Architecture, lora: Lora | None, itemsize: int, ranks: int
) -> tuple[Trainable, ...]:
    """Of what trains, the tensors that get gradients, which alone the optimizer updates."""
    trained = trainables(architecture, lora, itemsize, ranks)
    unused = architecture.extra.get("without_gradient")
    return trained if unused is None else tuple([p for p in trained if p.name != unused])


def _shown_micro_batches(accumulation: int) -> list[int]:
    """The first three micro batches and the last: those between repeat the third, block for block."""
    return sorted({*range(min(accumulation, 3)), accumulation - 1})


def _widen(
    recording: Recording, parameters: Sequence[Trainable], held: Sequence[int], before: Sequence[int]
) -> list[int]:
    """Each 16-bit gradient becomes the fp32 one of its master, whose last one dies, and is freed."""
    out = [-1] * len(parameters)
    for index, (p, number) in enumerate(zip(parameters, held, strict=True)):
        if number >= 0:
            out[index] = recording.allocate(p.size_bytes, _GRADIENTS, "master gradient", p.name)
            recording.free(before[index] if before else -1)
            recording.free(number)
    return out
