"""A steady step's figures without laying it out: equal blocks are summed, not replayed, in 512-byte roundings.

What it leaves out against the exact replay: the unsplit rest of blocks (up to 1 MiB a tensor; 0.1% to 2% of the
peak) and reserved memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from trainmem.buckets import BUCKETS
from trainmem.job import BaseQuantization, Lora, Optimizer, Precision, Sharding, TrainingJob
from trainmem.model import Architecture
from trainmem.recording import Recording
from trainmem.tape.claims import fully_sharded, has_masters
from trainmem.tape.dims import dimensions
from trainmem.tape.levels import Levels
from trainmem.tape.loading import load, local_name
from trainmem.tape.optimizers import Rounding, Trainable, optimizer_step, rounding_of
from trainmem.tape.program import compiled
from trainmem.tape.step import size_in_bytes, updated
from trainmem.tape.structure import standing, structure_of, weight_itemsize

__all__ = ["FastFigures", "fast_figures"]

_COUNT = len(BUCKETS)
_WEIGHTS = BUCKETS.index("weights")
_MASTERS = BUCKETS.index("master_weights")
_GRADIENTS = BUCKETS.index("gradients")
_STATE = BUCKETS.index("optimizer_state")
_TEMPORARIES = BUCKETS.index("temporaries")
_WORKSPACE = BUCKETS.index("workspace")

Vector = list[int]


@dataclass(frozen=True, slots=True)
class FastFigures:
    """The same figures as the exact replay's, bytes; buckets in the design's order."""

    phases: dict[str, int]
    peak_bytes: int
    peak_phase: Literal["forward", "backward", "optimizer"]
    peak_op: str
    peak_module: str
    buckets: tuple[int, ...]
    first_step_peak_bytes: int
    parameters: int
    trainable_parameters: int
    warnings: tuple[str, ...] = ()


class _Meter:
    """A sink that keeps only the level by bucket and its peak."""

    def __init__(self) -> None:
        self.sizes: list[tuple[int, int]] = []
        self.level = 0
        self.peak = 0
        self.kept = [0] * _COUNT

    def allocate(self, size_bytes: int, bucket: int, op: str, module: str = "") -> int:
        if size_bytes <= 0:
            return -1
        block = (size_bytes + 511) & ~511
        self.sizes.append((block, bucket))
        self.kept[bucket] += block
        self.level += block
        self.peak = max(self.peak, self.level)
        return len(self.sizes) - 1

    def allocate_all(
        self, sizes: Sequence[int], bucket: int, ops: Sequence[str], modules: Sequence[str]
    ) -> Sequence[int]:
        return [self.allocate(size, bucket, "") for size in sizes]

    def append(self, other: Recording, module: str) -> None:
        first, buckets = len(self.sizes), iter(other.bucket_of)
        for event in other.events:
            if event > 0:
                self.allocate(event, next(buckets), "")
            else:
                self.free(first + ~event)

    def free(self, number: int) -> None:
        if number >= 0:
            block, bucket = self.sizes[number]
            self.level -= block
            self.kept[bucket] -= block

    def free_all(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.free(number)


@lru_cache(maxsize=512)
def _one_of_each(architecture: Architecture) -> tuple[Architecture, tuple[int, ...]]:
    """The model with one block of each kind, and how many blocks there really are of each."""
    counts = Counter(architecture.layer_kinds)
    return replace(architecture, layer_kinds=tuple(counts)), tuple(counts.values())


@lru_cache(maxsize=512)
def _trained_bytes(architecture: Architecture, lora: Lora | None, itemsize: int, ranks: int) -> int:
    """Everything that trains, each tensor rounded up to 512 bytes."""
    few, counts = _one_of_each(architecture)
    outside, blocks = _by_block(updated(few, lora, itemsize, ranks))

    def rounded(parameters: list[Trainable]) -> int:
        return sum((p.size_bytes + 511) & ~511 for p in parameters)

    return rounded(outside) + sum(counts[number] * rounded(block) for number, block in blocks.items())


@lru_cache(maxsize=512)
def _loaded(
    architecture: Architecture,
    lora: Lora | None,
    quantization: BaseQuantization,
    precision: Precision,
    sharding: Sharding,
    cast: frozenset[str],
) -> _Kept:
    """What loading the model leaves: the same for every block of a kind, so that one more tells of all.

    ``cast``: names of biases within a block that the first step casts.
    """
    job = TrainingJob(
        model=architecture.family,
        lora=lora,
        base_quantization=quantization,
        precision=precision,
        sharding=sharding,
    )
    few, counts = _one_of_each(architecture)
    kept = once = _kept(job, few, cast)
    for kind, count in zip(few.layer_kinds, counts, strict=True):
        if count > 1:
            more = _kept(job, replace(few, layer_kinds=(*few.layer_kinds, kind)), cast)
            kept = kept.plus(more.less(once), count - 1)
    return kept


@dataclass(frozen=True, slots=True)
class _Kept:
    """Bytes by bucket, and counts of parameters."""

    buckets: Vector
    parameters: int
    trainable_parameters: int

    def plus(self, other: _Kept, times: int = 1) -> _Kept:
        return _Kept(
            [size + times * more for size, more in zip(self.buckets, other.buckets, strict=True)],
            self.parameters + times * other.parameters,
            self.trainable_parameters + times * other.trainable_parameters,
        )

    def less(self, other: _Kept) -> _Kept:
        return self.plus(other, -1)


def _kept(job: TrainingJob, architecture: Architecture, cast: frozenset[str]) -> _Kept:
    meter = _Meter()
    counts = load(meter, job, architecture)
    counts.cast_biases(meter, cast)
    return _Kept(meter.kept, counts.parameters, counts.trainable_parameters)


@lru_cache(maxsize=512)
def _optimizer_bytes(
    architecture: Architecture,
    lora: Lora | None,
    itemsize: int,
    ranks: int,
    optimizer: Optimizer,
    rounding: Rounding,
    dims: tuple[tuple[str, int], ...],
) -> tuple[int, int]:
    """(state, highest temporaries of a step) of an optimizer over all that trains.

    Both grow by the same amount with every equal block after the second, so up to three of a sort tell all of them.
    They stand where they do in the model, as an optimizer's loop holds temporaries of a parameter into the next one's.
    """
    few, counts = _one_of_each(architecture)
    everything = updated(few, lora, itemsize, ranks)
    _, blocks = _by_block(everything)
    scope = dict(dims)
    alike = _alike_blocks(blocks, counts)
    kept = {p.name for block, _ in alike for p in block}
    once = [p for p in everything if p.name in kept or not p.name.startswith("layers.")]
    state, scratch = _metered(once, optimizer, rounding, scope)
    totals = [state, scratch]
    for block, count in alike:
        if count > 1:
            end = once.index(block[-1]) + 1
            twice = _metered([*once[:end], *block, *once[end:]], optimizer, rounding, scope)
            thrice = twice
            if count > 2:
                thrice = _metered([*once[:end], *block, *block, *once[end:]], optimizer, rounding, scope)
            totals[0] += twice[0] - state + (count - 2) * (thrice[0] - twice[0])
            totals[1] += twice[1] - scratch + (count - 2) * (thrice[1] - twice[1])
    return totals[0], totals[1]


def _by_block(everything: Sequence[Trainable]) -> tuple[list[Trainable], dict[int, list[Trainable]]]:
    """What lies outside the blocks, and the parameters of each block by its number."""
    outside: list[Trainable] = []
    blocks: dict[int, list[Trainable]] = {}
    for p in everything:
        if p.name.startswith("layers."):
            blocks.setdefault(int(p.name.split(".", 2)[1]), []).append(p)
        else:
            outside.append(p)
    return outside, blocks


def _alike_blocks(
    blocks: dict[int, list[Trainable]], counts: tuple[int, ...]
) -> list[tuple[list[Trainable], int]]:
    """The parameters of one block of each sort, and how many blocks are of it."""
    sorts: dict[tuple[tuple[int, ...], ...], tuple[list[Trainable], int]] = {}
    for number, block in blocks.items():
        key = tuple(p.shape for p in block)
        first, count = sorts.get(key, (block, 0))
        sorts[key] = first, count + counts[number]
    return list(sorts.values())


def _metered(
    parameters: list[Trainable] | tuple[Trainable, ...],
    optimizer: Optimizer,
    rounding: Rounding,
    scope: dict[str, int],
) -> tuple[int, int]:
    meter = _Meter()
    optimizer_step(optimizer, meter, parameters, True, scope, rounding)
    state = meter.level
    meter = _Meter()
    optimizer_step(optimizer, meter, parameters, False, scope, rounding)
    return state, meter.peak


def fast_figures(job: TrainingJob, architecture: Architecture) -> FastFigures:
    """The figures of a steady step and the first step's peak."""
    dims = dimensions(job, architecture)
    itemsize = weight_itemsize(job)
    ranks = job.sharding.data_parallel if fully_sharded(job) else 0
    masters = has_masters(job)
    fresh = compiled(structure_of(job, architecture))
    narrow = masters and job.precision == "bf16_master"
    zeros = job.zero_grad == "zeros" and not narrow
    adding = None
    if job.accumulation > 1 or zeros:
        adding = compiled(structure_of(job, architecture, accumulating=True))

    cast = frozenset(local_name(name) for name in fresh.loaded)
    loaded = _loaded(architecture, job.lora, job.base_quantization, job.precision, job.sharding, cast)
    base = list(loaded.buckets)
    tokens = job.micro_batch * job.sequence_length * 8
    base[_WEIGHTS] += ((tokens + 511) & ~511) + (512 if job.task == "sequence_classification" else 0)
    master_bytes = base[_MASTERS]
    scope = tuple((k, dims[k]) for k in ("sm_count", "threads_per_sm"))
    state, scratch = _optimizer_bytes(
        architecture, job.lora, 4 if masters else itemsize, ranks, job.optimizer, rounding_of(job), scope
    )
    base[_STATE] = state
    base[_WORKSPACE] = sum(
        (size_in_bytes(fresh.sizes[fresh.size_of[key]], dims) + 511) & ~511
        for key in fresh.once
        if fresh.bucket_of[key] == _WORKSPACE
    )
    wide = masters and job.precision == "bf16_master_fp32_grads"
    gradients = _trained_bytes(architecture, job.lora, 4 if wide else itemsize, ranks)
    if zeros:
        base[_GRADIENTS] = gradients
    elif narrow and job.zero_grad == "zeros":
        base[_GRADIENTS] = master_bytes

    start = sum(base)
    phases = {"start_bytes": start}
    run = Levels(standing(job, architecture), base)
    if adding is None or not zeros:
        run.micro_batch(fresh, dims)
    if adding is not None and (job.accumulation > 1 or zeros):
        run.micro_batch(adding, dims)
    phases.update(run.phases)
    after = run.level
    held = gradients
    if narrow:
        after += master_bytes - gradients - base[_GRADIENTS]
        held = master_bytes
    first_optimizer = after + scratch
    phases["after_optimizer_bytes"] = after
    phases["peak_optimizer_bytes"] = max(after + scratch, run.level)
    phases["after_zero_grad_bytes"] = after - (0 if job.zero_grad == "zeros" else held)
    peak, phase, op, module, buckets = run.peak()
    if phases["peak_optimizer_bytes"] > peak:
        peak, phase, op, module = phases["peak_optimizer_bytes"], "optimizer", job.optimizer, ""
        buckets = list(base)
        buckets[_GRADIENTS] = held
        buckets[_TEMPORARIES] += peak - sum(buckets)
    first = max(run.top - state - base[_GRADIENTS], first_optimizer)
    return FastFigures(
        phases={key: phases[key] for key in sorted(phases, key=_PHASE_ORDER.index)},
        peak_bytes=peak,
        peak_phase=phase,  # type: ignore[arg-type]
        peak_op=op,
        peak_module=module,
        buckets=tuple(buckets),
        first_step_peak_bytes=first,
        parameters=loaded.parameters,
        trainable_parameters=loaded.trainable_parameters,
    )


_PHASE_ORDER = [
    "start_bytes",
    "after_forward_bytes",
    "peak_forward_bytes",
    "after_backward_bytes",
    "peak_backward_bytes",
    "after_optimizer_bytes",
    "peak_optimizer_bytes",
    "after_zero_grad_bytes",
]
