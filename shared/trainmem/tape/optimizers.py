"""An optimizer's step as allocations and frees, parameter by parameter.

Sources: torch/optim/{adam,sgd,_adafactor,_muon}.py and bitsandbytes/optim/optimizer.py; orders compared with
allocator traces recorded on an H200. State appears in the first step and stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Literal, NamedTuple, Protocol

from trainmem.buckets import BUCKETS
from trainmem.job import Optimizer, TrainingJob
from trainmem.recording import Recording
from trainmem.tape import kernels

__all__ = ["Rounding", "Sink", "Trainable", "optimizer_step", "rounding_of", "trainable"]

_STATE = BUCKETS.index("optimizer_state")
_SCRATCH = BUCKETS.index("temporaries")
_BLOCK_8BIT = 256
_MIN_8BIT = 4096
_MIN_PAGED = 100_000


class Sink(Protocol):
    """Where allocations go: a `Recording`, or a meter that only sums; the same methods."""

    def allocate(self, size_bytes: int, bucket: int, op: str, module: str = "") -> int:
        """Record an allocation; its number."""

    def allocate_all(
        self, sizes: Sequence[int], bucket: int, ops: Sequence[str], modules: Sequence[str]
    ) -> Sequence[int]:
        """Record allocations one after the other; their numbers."""

    def append(self, other: Recording, module: str) -> None:
        """Record another recording's events."""

    def free(self, number: int) -> None:
        """Record a free."""

    def free_all(self, numbers: Iterable[int]) -> None:
        """Record frees in this order."""


class Trainable(NamedTuple):
    """One tensor that the optimizer updates: ``numel`` elements, ``size_bytes`` in all."""

    name: str
    shape: tuple[int, ...]
    itemsize: int
    numel: int
    size_bytes: int


def trainable(name: str, shape: tuple[int, ...], itemsize: int) -> Trainable:
    """A tensor of that shape, ``itemsize`` bytes an element."""
    numel = prod(shape)
    return Trainable(name, shape, itemsize, numel, numel * itemsize)


StepFn = Callable[[Sink, Sequence[Trainable], bool, Mapping[str, int]], None]
Rounding = Literal["none", "kahan", "stochastic"]


def rounding_of(job: TrainingJob) -> Rounding:
    """How a 16-bit weight takes an update too small for it."""
    if job.lora is not None:
        return "none"
    if job.precision == "bf16_kahan":
        return "kahan"
    return "stochastic" if job.precision == "bf16_stochastic" else "none"


def optimizer_step(
    optimizer: Optimizer,
    sink: Sink,
    parameters: Sequence[Trainable],
    first: bool,
    dims: Mapping[str, int],
    rounding: Rounding = "none",
) -> None:
    """Emit one step of ``optimizer`` over ``parameters``; ``first``: its state does not exist yet.

    Under Kahan or stochastic rounding the AdamW and SGD kinds run parameter by parameter with an update tensor
    of their own. The other optimizers have no such form: their step is taken as it is, and Kahan's
    compensation is added to their state.
    """
    if rounding != "none" and optimizer in _ROUNDED:
        _rounded(optimizer, rounding, sink, parameters, first)
        return
    _STEPS[optimizer](sink, parameters, first, dims)
    if rounding == "kahan" and first:
        _one_each(sink, parameters, _STATE, "Kahan compensation")


def _one_each(sink: Sink, parameters: Sequence[Trainable], bucket: int, op: str) -> Sequence[int]:
    """A tensor like each parameter; their numbers."""
    sizes, names = [p.size_bytes for p in parameters], [p.name for p in parameters]
    return sink.allocate_all(sizes, bucket, [op] * len(sizes), names)


_ITS_OWN = "its own"
"""In the place of a parameter's name, which `Recording.append` puts there."""

_ROUNDED = ("adamw", "adamw_fused", "adamw_loop", "sgd", "sgd_momentum")


def _rounded(
    optimizer: Optimizer, rounding: Rounding, sink: Sink, parameters: Sequence[Trainable], first: bool
) -> None:
    for p in parameters:
        sink.append(_rounded_update(optimizer, rounding, p.numel, p.itemsize, first), p.name)


@lru_cache(maxsize=512)
def _rounded_update(
    optimizer: Optimizer, rounding: Rounding, numel: int, itemsize: int, first: bool
) -> Recording:
    """The update of one parameter of so many elements."""
    out, size = Recording(), numel * itemsize
    denominator = -1
    if optimizer.startswith("adamw"):
        if first:
            out.allocate(size, _STATE, "AdamW exp_avg", _ITS_OWN)
            out.allocate(size, _STATE, "AdamW exp_avg_sq", _ITS_OWN)
        denominator = out.allocate(size, _SCRATCH, "AdamW denominator", _ITS_OWN)
    elif optimizer == "sgd_momentum" and first:
        out.allocate(size, _STATE, "SGD momentum", _ITS_OWN)
    update = out.allocate(size, _SCRATCH, "update", _ITS_OWN)
    out.free(denominator)
    if rounding == "kahan":
        if first:
            out.allocate(size, _STATE, "Kahan compensation", _ITS_OWN)
        out.free(out.allocate(size, _SCRATCH, "weight before the update", _ITS_OWN))
    else:
        wide = out.allocate(4 * numel, _SCRATCH, "update in fp32", _ITS_OWN)
        noise = out.allocate(4 * numel, _SCRATCH, "rounding noise", _ITS_OWN)
        rounded = out.allocate(size, _SCRATCH, "rounded weight", _ITS_OWN)
        out.free(noise)
        out.free(wide)
        out.free(rounded)
    out.free(update)
    return out


def _adam_state(sink: Sink, parameters: Sequence[Trainable], *, counter: bool = False) -> None:
    ops = [*(["AdamW step count"] if counter else []), "AdamW exp_avg", "AdamW exp_avg_sq"]
    sizes: list[int] = []
    for p in parameters:
        sizes += (4, p.size_bytes, p.size_bytes) if counter else (p.size_bytes, p.size_bytes)
    names = [p.name for p in parameters for _ in ops]
    sink.allocate_all(sizes, _STATE, ops * len(parameters), names)


def _adamw(sink: Sink, parameters: Sequence[Trainable], first: bool, dims: Mapping[str, int]) -> None:
    if first:
        _adam_state(sink, parameters)
    sink.free_all(reversed(_one_each(sink, parameters, _SCRATCH, "AdamW foreach sqrt")))


def _adamw_fused(sink: Sink, parameters: Sequence[Trainable], first: bool, dims: Mapping[str, int]) -> None:
    if first:
        _adam_state(sink, parameters, counter=True)


def _adamw_loop(sink: Sink, parameters: Sequence[Trainable], first: bool, dims: Mapping[str, int]) -> None:
    if first:
        _adam_state(sink, parameters)
    before = -1
    for p in parameters:
        root = sink.allocate(p.size_bytes, _SCRATCH, "AdamW sqrt", p.name)
        denominator = sink.allocate(p.size_bytes, _SCRATCH, "AdamW denominator", p.name)
        sink.free(root)
        sink.free(before)
        before = denominator
    sink.free(before)


def _sgd(sink: Sink, parameters: Sequence[Trainable], first: bool, dims: Mapping[str, int]) -> None:
    pass


def _sgd_momentum(sink: Sink, parameters: Sequence[Trainable], first: bool, dims: Mapping[str, int]) -> None:
    if first:
        _one_each(sink, parameters, _STATE, "SGD momentum")


def _norm(sink: Sink, p: Trainable, itemsize: int, dims: Mapping[str, int]) -> None:
    """The 2-norm of a whole tensor: a scalar and the staging memory of its reduction, all freed."""
    scalar = sink.allocate(itemsize, _SCRATCH, "norm", p.name)
    _reduce(sink, p, 1, p.numel, True, dims)
    sink.free(scalar)


def _reduce(
    sink: Sink, p: Trainable, outputs: int, inputs: int, fastest: bool, dims: Mapping[str, int]
) -> None:
    scope = {**dims, "outputs": outputs, "inputs": inputs}
    rule = (("outputs",), ("inputs",), fastest, p.itemsize)
    staging = sink.allocate(kernels.reduction_staging(scope, *rule), _SCRATCH, "norm staging", p.name)
    semaphores = sink.allocate(
        kernels.reduction_semaphores(scope, *rule), _SCRATCH, "norm semaphores", p.name
    )
    sink.free(semaphores)
    sink.free(staging)


def _adafactor(sink: Sink, parameters: Sequence[Trainable], first: bool, dims: Mapping[str, int]) -> None:
    """torch's Adafactor: row and column vectors for matrices, a full second moment for vectors.

    Names stay bound from one parameter to the next (``row_mean``, ``col_mean``, ``update``), so the last
    parameter's temporaries outlive the next one's first ones.
    """
    if first:
        for p in parameters:
            if len(p.shape) > 1:
                rows, columns = p.numel // p.shape[-1], p.numel // p.shape[-2]
                sink.allocate(rows * p.itemsize, _STATE, "Adafactor row variance", p.name)
                sink.allocate(columns * p.itemsize, _STATE, "Adafactor column variance", p.name)
            else:
                sink.allocate(p.size_bytes, _STATE, "Adafactor variance", p.name)
    row = column = squared = update = -1
    for p in parameters:
        _norm(sink, p, p.itemsize, dims)
        if len(p.shape) > 1:
            rows, columns = p.numel // p.shape[-1], p.numel // p.shape[-2]
            fresh = sink.allocate(rows * p.itemsize, _SCRATCH, "Adafactor row mean", p.name)
            _reduce(sink, p, rows, p.shape[-1], True, dims)
            sink.free(row)
            row = fresh
            fresh = sink.allocate(columns * p.itemsize, _SCRATCH, "Adafactor column mean", p.name)
            _reduce(sink, p, columns, p.shape[-2], False, dims)
            sink.free(column)
            column = fresh
            estimate = sink.allocate(p.size_bytes, _SCRATCH, "Adafactor variance estimate", p.name)
            mean = sink.allocate(
                p.itemsize * (rows // p.shape[-2]), _SCRATCH, "Adafactor row mean of means", p.name
            )
            sink.free(mean)
        else:
            fresh = sink.allocate(p.size_bytes, _SCRATCH, "Adafactor squared gradient", p.name)
            sink.free(squared)
            squared = fresh
            estimate = sink.allocate(p.size_bytes, _SCRATCH, "Adafactor variance estimate", p.name)
        sink.free(update)
        update = estimate
        _norm(sink, p, p.itemsize, dims)
    for number in (row, column, squared, update):
        sink.free(number)


def _muon(sink: Sink, parameters: Sequence[Trainable], first: bool, dims: Mapping[str, int]) -> None:
    """torch's Muon over the matrices, then foreach AdamW over the rest.

    Five Newton-Schulz iterations in bf16, each with two square products of the smaller side.
    """
    matrices = [p for p in parameters if len(p.shape) == 2]
    rest = [p for p in parameters if len(p.shape) != 2]
    if first:
        _one_each(sink, matrices, _STATE, "Muon momentum")
    result = -1
    for p in matrices:
        side = min(p.shape) ** 2 * 2
        update = sink.allocate(p.size_bytes, _SCRATCH, "Muon nesterov update", p.name)
        sink.free(result)
        owned = p.itemsize != 2
        current = sink.allocate(2 * p.numel, _SCRATCH, "Muon bf16 update", p.name) if owned else -1
        norm = sink.allocate(2, _SCRATCH, "norm", p.name)
        _reduce(sink, p, 1, p.numel, True, dims)
        clamped = sink.allocate(2, _SCRATCH, "norm", p.name)
        sink.free(norm)
        sink.free(clamped)
        gram = correction = -1
        for _ in range(5):
            fresh = sink.allocate(side, _SCRATCH, "Muon gram matrix", p.name)
            sink.free(gram)
            gram = fresh
            fresh = sink.allocate(side, _SCRATCH, "Muon gram update", p.name)
            sink.free(correction)
            correction = fresh
            fresh = sink.allocate(2 * p.numel, _SCRATCH, "Muon iterate", p.name)
            sink.free(current)
            current = fresh
        sink.free(gram)
        sink.free(correction)
        sink.free(update)
        result = current
    sink.free(result)
    if rest:
        _adamw(sink, rest, first, dims)


def _eight_bit(moments: int, *, paged: bool) -> StepFn:
    """bitsandbytes' 8-bit states: a byte an element and an fp32 scale a block of 256, from 4,096 elements up.

    Paged states of 100,000 elements and more live in managed memory, outside torch's allocator.
    """

    def step(sink: Sink, parameters: Sequence[Trainable], first: bool, dims: Mapping[str, int]) -> None:
        if not first:
            return
        made: list[tuple[int, str, str]] = []
        maps = False
        for p in parameters:
            if p.numel < _MIN_8BIT:
                made += [(4 * p.numel, "fp32 moment of a small tensor", p.name)] * moments
                continue
            if not maps:
                maps = True
                made += [(1024, "8-bit code book", "")] * moments
            if not (paged and p.numel >= _MIN_PAGED):
                made += [(p.numel, "8-bit moment", p.name)] * moments
            made += [(4 * -(-p.numel // _BLOCK_8BIT), "8-bit moment scales", p.name)] * moments
        if made:
            sizes, ops, names = zip(*made, strict=True)
            sink.allocate_all(sizes, _STATE, ops, names)

    return step


_STEPS: dict[Optimizer, StepFn] = {
    "adamw": _adamw,
    "adamw_fused": _adamw_fused,
    "adamw_loop": _adamw_loop,
    "sgd": _sgd,
    "sgd_momentum": _sgd_momentum,
    "adafactor": _adafactor,
    "muon": _muon,
    "adamw8bit": _eight_bit(2, paged=False),
    "paged_adamw8bit": _eight_bit(2, paged=True),
    "lion8bit": _eight_bit(1, paged=False),
}
