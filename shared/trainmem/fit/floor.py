"""A step cannot be faster than this: its arithmetic, and the bytes that its memory must move."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from math import prod
from statistics import median
from typing import Any

from trainmem.device import Device, device
from trainmem.fit.links import HOST_MEMORY_BYTES_PER_SECOND, links_of
from trainmem.fit.measured import timed_steps
from trainmem.job import ACTIVATION_DTYPE_BYTES, TrainingJob
from trainmem.model import Architecture, resolve
from trainmem.results import step_flops
from trainmem.results.plausible import device_of_gpu
from trainmem.whiteboard.adapters import Shapes, trainable_shapes
from trainmem.whiteboard.optimizer_state import optimizer_state
from trainmem.whiteboard.sharding import offload_leaves_device, shares
from trainmem.whiteboard.states import recipe_of

__all__ = ["Fraction", "StepFloor", "measured_fraction", "optimizer_traffic_bytes", "step_floor"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepFloor:
    """Seconds that one optimizer step of one rank takes at least.

    ``compute_seconds``: forward and backward at the vendor's bf16 rate, None without one. ``weights_seconds``:
    reading the weights and moving the gradients meanwhile. ``adding_seconds``: adding up the gradients of
    further micro batches. ``optimizer_seconds``: the optimizer's bytes. ``link_seconds``: what crosses between
    ranks, while others compute. ``offload_seconds``: what crosses to the host and back and what the optimizer
    moves there, between backward and the next forward.
    """

    compute_seconds: float | None
    weights_seconds: float
    adding_seconds: float
    optimizer_seconds: float
    link_seconds: float
    offload_seconds: float
    flops: int
    optimizer_bytes: int
    tokens: int

    @property
    def seconds(self) -> float:
        """Compute, weights and collectives may overlap; sums of gradients and the optimizer wait for them."""
        overlapped = max(self.compute_seconds or 0.0, self.weights_seconds, self.link_seconds)
        return overlapped + self.adding_seconds + self.optimizer_seconds + self.offload_seconds

    def to_json(self) -> dict[str, Any]:
        """For the command line."""
        parts = {name: getattr(self, name) for name in self.__slots__}
        return {"seconds": self.seconds, **parts}


def recomputed_flops(job: TrainingJob, architecture: Architecture) -> int:
    """What checkpointing computes a second time in one step.

    Equation: full and sqrt, tokens x 2 M of the blocks and their attention's forward; selective, attention's
    forward alone; so at most a third of full training. Source: Chen et al. 2016; Korthikanti et al. 2022.
    Leaves out: that the last segment of sqrt need not be run again.
    """
    if job.checkpointing == "none":
        return 0
    tokens = job.micro_batch * job.sequence_length * job.accumulation
    causal = 1 if architecture.extra.get("encoder") else 2
    window = architecture.extra.get("sliding_window")
    scores = 0.0
    if not window:
        scores = 4 * job.sequence_length / causal * architecture.heads * architecture.head_dim
    attention = tokens * scores * architecture.layers
    matrices = 0.0
    if job.checkpointing != "selective":
        experts, each = architecture.extra.get("experts"), architecture.extra.get("experts_per_token")
        share = int(each) / int(experts) if experts and each else 1.0
        for kind in architecture.layer_kinds:
            for parameter in architecture.blocks[kind]:
                if parameter.kind == "linear":
                    matrices += parameter.numel
                elif parameter.kind == "expert" and len(parameter.shape) >= 3:
                    matrices += parameter.numel * share
    ranks = job.sharding.tensor_parallel * job.sharding.pipeline_parallel
    return round((attention + 2 * tokens * matrices) / ranks)


def optimizer_traffic_bytes(job: TrainingJob) -> int:
    """Bytes that one optimizer step of one rank reads and writes.

    Equation: read each gradient, read and write each weight (or master weight and the copy made of it) and
    each piece of state. fp32 AdamW: 4 + 2 x 4 + 2 x 8 = 28 B a parameter; reading alone is the familiar 16,
    so that 7B at 273 GB/s takes 0.4 s to read and 0.7 s in all.
    Leaves out: the further passes of the foreach and loop implementations, and caches: state is far larger.
    """
    architecture, recipe = resolve(job).architecture, recipe_of(job)
    shapes = trainable_shapes(architecture, job.lora)
    trained = _elements(shapes)
    state = optimizer_state(job.optimizer, shapes, recipe.state_bytes)
    kept = state.device_bytes + state.managed_bytes + trained * recipe.compensation_bytes
    updated = recipe.master_bytes or recipe.weight_bytes
    copied = recipe.weight_bytes if recipe.master_bytes else 0
    each = (recipe.master_bytes or recipe.gradient_bytes) + 2 * updated + copied
    return (2 * kept + trained * each) // shares(job.sharding).optimizer


def step_floor(job: TrainingJob, on: Device | None = None) -> StepFloor:
    """The floor of ``job`` on a device, its own by default.

    Equations: FLOPs of `step_flops` and what checkpointing computes again / the device's bf16 rate; weights
    read in forward, backward and recomputation, gradients written once a micro batch / bandwidth; for every
    micro batch after the first, two gradients read and their sum written, and under autocast the trained weights
    cast once more / bandwidth; `optimizer_traffic_bytes` / bandwidth; FSDP2 and ZeRO 3 gather weights twice and scatter
    gradients once a micro batch, DDP and ZeRO 1 and 2 move gradients twice a step, x (N - 1)/N / the link;
    offloading moves gradients out and weights in, over the host's link, and `optimizer_traffic_bytes` at
    `HOST_MEMORY_BYTES_PER_SECOND`.
    Source: the devices' data sheets. Leaves out: activations' own traffic, kernel launches, loading of data,
    every imperfection. Known error: a measured step takes two to twenty times as long: `measured_fraction`.
    """
    machine = on or device(job.device)
    architecture, recipe = resolve(job).architecture, recipe_of(job)
    flops = step_flops(job, architecture) + recomputed_flops(job, architecture)
    bandwidth, rate = machine.bandwidth_bytes_per_second, machine.bf16_flops_per_second
    sharding, over = job.sharding, shares(job.sharding)

    trained = _elements(trainable_shapes(architecture, job.lora))
    weights = architecture.parameter_count * ACTIVATION_DTYPE_BYTES[job.precision]
    gradients = trained * recipe.gradient_bytes
    passes = 2 if job.checkpointing in ("none", "selective") else 3
    moved = job.accumulation * (passes * weights + gradients)
    if job.zero_grad == "zeros":
        moved += 2 * gradients

    crossing = 0.0
    if sharding.data_parallel > 1:
        size = 4 if job.precision.startswith("amp") else ACTIVATION_DTYPE_BYTES[job.precision]
        gathered = architecture.parameter_count * size
        if sharding.mode in ("zero3", "fsdp2"):
            crossing = job.accumulation * (2 * gathered + gradients)
        else:
            crossing = 2 * gradients
        crossing *= (sharding.data_parallel - 1) / sharding.data_parallel
    again = 3 * gradients
    if job.precision in ("amp_bf16", "amp_fp16"):
        again += trained * (recipe.weight_bytes + 2)
    links = links_of(machine.name)
    offloaded, traffic = 0.0, optimizer_traffic_bytes(job)
    if offload_leaves_device(job):
        crossed = (gradients + trained * recipe.weight_bytes) / over.gradients
        offloaded = (
            crossed / (links.host_bytes_per_second or bandwidth) + traffic / HOST_MEMORY_BYTES_PER_SECOND
        )
        traffic = 0
    model = sharding.tensor_parallel * sharding.pipeline_parallel
    return StepFloor(
        compute_seconds=flops / rate if rate else None,
        weights_seconds=moved / model / bandwidth,
        adding_seconds=(job.accumulation - 1) * again / over.gradients / model / bandwidth,
        optimizer_seconds=traffic / bandwidth,
        link_seconds=crossing / model / links.peers_bytes_per_second,
        offload_seconds=offloaded,
        flops=flops,
        optimizer_bytes=traffic,
        tokens=job.micro_batch * job.sequence_length * job.accumulation * sharding.data_parallel,
    )


def _elements(shapes: Shapes) -> int:
    return sum(copies * prod(shape) for shape, copies in shapes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fraction:
    """How near measured steps came to their floor: floor over measured seconds, on one machine."""

    median: float
    least: float
    most: float
    rows: int
    machine: str
    alike: str

    def to_json(self) -> dict[str, Any]:
        """For the command line."""
        return {name: getattr(self, name) for name in self.__slots__}


_NEAREST = 5


@cache
def _timed() -> tuple[tuple[TrainingJob, Device, float, float], ...]:
    """Every timed step: the job, its machine, its seconds, and the logarithm of its parameters."""
    found = []
    for job, row in timed_steps():
        machine, seconds = device_of_gpu(str(row.environment.get("gpu"))), row.step_seconds
        size = row.measured.get("parameters")
        if machine is None or not seconds or not size:
            continue
        found.append((job, machine, seconds, math.log(size)))
    return tuple(found)


def measured_fraction(job: TrainingJob, on: Device | None = None) -> Fraction | None:
    """How near the published timings that ``job`` resembles came to their floors.

    Of its machine where that was timed, else of any; of its precision and attention and with adapters or without, where
    there are enough; of these the steps of the models nearest in parameters, five or more. Batch and length do not
    choose them: fewer tokens would move to slower rows, and be expected to take longer. None where nothing was timed.
    Known error: each timed step from the others of other jobs, a median of 18% off, nine in ten within a factor of 1.7.
    """
    wanted = (on or device(job.device)).name
    pool = [timed for timed in _timed() if timed[1].name == wanted] or list(_timed())
    alike = ""
    for words, same in (
        ("adapters" if job.lora else "full training", lambda other: bool(other.lora) == bool(job.lora)),
        (job.precision, lambda other: other.precision == job.precision),
        (job.attention, lambda other: other.attention == job.attention),
    ):
        closer = [timed for timed in pool if same(timed[0])]
        if len(closer) >= _NEAREST:
            pool, alike = closer, f"{alike}, {words}" if alike else words
    if not pool:
        return None
    size = math.log(resolve(job).architecture.parameter_count)
    distances = sorted(abs(timed[3] - size) for timed in pool)
    furthest = distances[min(_NEAREST, len(pool)) - 1]
    nearest = [timed for timed in pool if abs(timed[3] - size) <= furthest]
    values = [step_floor(other, machine).seconds / seconds for other, machine, seconds, _ in nearest]
    return Fraction(
        median=median(values),
        least=min(values),
        most=max(values),
        rows=len(values),
        machine=nearest[0][1].name,
        alike=alike or "every step",
    )
