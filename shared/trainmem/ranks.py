"""One rank of a sharded job that the tape does not replay: the unsharded step's events, each on its share.

The tape records the job on one device. Here every allocation is divided by the ranks that share it, gradients lie
whole until their block is through the backward pass, and what collectives hold comes and goes with the blocks. So
the peak is looked for anew, at whichever instant it then comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

from trainmem.buckets import BUCKETS
from trainmem.job import WEIGHT_DTYPE_BYTES, Sharding, TrainingJob
from trainmem.model import Architecture
from trainmem.recording import Mark, Recording
from trainmem.tape import record
from trainmem.whiteboard import whiteboard
from trainmem.whiteboard.sharding import offload_leaves_device, offload_takes_parameters, shares

__all__ = ["record_rank"]

_WEIGHTS, _MASTERS, _GRADIENTS, _STATE, _COMMUNICATION, _TEMPORARIES = map(
    BUCKETS.index,
    ("weights", "master_weights", "gradients", "optimizer_state", "communication", "temporaries"),
)
_GATHER_STREAM, _REDUCE_STREAM = 1, 2
_ROOT = ""


def record_rank(job: TrainingJob, architecture: Architecture) -> Recording:
    """Three steps of one rank of ``job``, made from those of the job on one device.

    Equations: weights, master weights, gradients and optimizer state over the ranks that share them (ZeRO,
    Rajbhandari et al. 2020, section 5), the optimizer's temporaries like its state; activations and logits as the
    whiteboard divides them; under ZeRO 3 and FSDP2 the root's parameters whole through forward and backward, those
    of the block at work, the buffer of the next, the block's whole gradients and the input of its reduction
    (torch/distributed/fsdp/_fully_shard); DDP's buckets as large as the gradients, one bucket of ZeRO 1 and 2.
    Leaves out: NCCL's own buffers and uneven shards.
    Raises `Unsupported` where the tape does not replay the job on one device.
    """
    return _Rank(job, architecture).rewritten()


@dataclass(slots=True)
class _Group:
    """Parameters that are gathered and reduced together, and the allocations that hold them whole.

    ``waiting`` are gradients of the whole recording until they are reduced, with their bytes whole and as a shard;
    ``added`` are allocations of those that one device has added to others already.
    """

    sizes: list[int] = field(default_factory=list)
    reduced_bytes: int = 0
    full: list[int] = field(default_factory=list)
    buffer: int = -1
    waiting: dict[int, tuple[int, int]] = field(default_factory=dict)
    added: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Share:
    """What becomes of an allocation: ``times`` its size over the ``ranks`` that share it; nothing over 0."""

    ranks: float
    times: int = 1

    def of(self, size_bytes: int) -> int:
        return -int(-size_bytes * self.times // self.ranks) if self.ranks else 0


class _Rank:
    def __init__(self, job: TrainingJob, architecture: Architecture) -> None:
        self.job, self.mode = job, job.sharding.mode
        precision = job.precision
        if precision == "fsdp_mp_bf16":
            # FSDP's own mixed precision computes in bf16 and keeps all else in fp32; DDP has no part in it.
            precision = "fp32" if self.mode == "ddp" else "bf16"
        self.times = WEIGHT_DTYPE_BYTES[job.precision] // WEIGHT_DTYPE_BYTES[precision]
        alone = replace(job, precision=precision, sharding=Sharding())
        self.whole = record(alone, architecture)
        self.gathers = self.mode in ("zero3", "fsdp2")
        self.reduces = self.gathers or self.mode == "zero2"
        self.reshards = job.sharding.reshard_after_forward or self.mode == "zero3"
        self.split = job.sharding.tensor_parallel * job.sharding.pipeline_parallel
        self.share = [*self._shares(job, architecture)]
        rank = whiteboard(job, architecture)
        self.buckets_bytes = 0 if self.gathers else rank.buckets["communication"]
        # a gradient is 16 bits wide until its block's are reduced, where it then is fp32
        narrow = self.reduces and job.lora is None and job.precision == "bf16_master_fp32_grads"
        self.waiting_share = _Share(self.split * (2 if narrow else 1))
        self.events = _converted_in_place(self.whole) if narrow else self.whole.events
        self.out = Recording(
            parameters=self.whole.parameters,
            trainable_parameters=self.whole.trainable_parameters,
            warnings=[*self.whole.warnings],
        )
        self.stands: list[int] = []
        # a gradient that one device adds to another at once waits whole for its block's reduction; autocast's is cast
        self.adds_whole = self.reduces and not narrow and not job.precision.startswith("amp")
        self.adding: dict[int, _Group] = {}
        # the two gradients of a tied embedding are one by then
        self.tied = architecture.tied
        self.groups: dict[str, _Group] = {}
        self.at = _ROOT
        self.fetched = self.reducing = self.bucket = -1

    def _shares(self, job: TrainingJob, architecture: Architecture) -> Iterator[_Share]:
        over, away = shares(job.sharding), offload_leaves_device(job)
        whole = replace(job, sharding=Sharding())
        plain, rank = whiteboard(whole, architecture).buckets, whiteboard(job, architecture).buckets
        trained = 1 if job.lora is not None else self.times
        all_away = offload_takes_parameters(job)
        for number, bucket in enumerate(BUCKETS):
            if number == _WEIGHTS:
                yield _Share(0 if all_away else over.weights, self.times)
            elif number == _GRADIENTS:
                yield _Share(0 if all_away else over.gradients, trained)
            elif number in (_MASTERS, _STATE):
                yield _Share(0 if away else over.optimizer, trained)
            elif bucket in ("activations", "logits") and rank[bucket]:
                yield _Share(plain[bucket] / rank[bucket])
            else:
                yield _Share(1)

    def rewritten(self) -> Recording:
        whole, out = self.whole, self.out
        ends = [*(mark.event for mark in whole.marks), len(whole.events)]
        emptied = {*whole.empty_cache_before}
        number = 0
        for mark, (begin, end) in zip(whole.marks, pairwise(ends), strict=True):
            out.mark(mark.step, mark.phase, mark.micro)
            self._begin(mark)
            for event in range(begin, end):
                if event in emptied:
                    out.empty_cache()
                value = self.events[event]
                if value > 0:
                    self._allocate(number, value, mark)
                    number += 1
                else:
                    self._free(~value)
            self._end(mark)
        return out

    def _free(self, number: int) -> None:
        group = self.adding.pop(number, None)
        if group is not None:
            group.added.append(self.stands[number])
            return
        self.out.free(self.stands[number])
        if self.groups:
            self.groups[self.at].waiting.pop(number, None)

    def _allocate(self, number: int, size_bytes: int, mark: Mark) -> None:
        whole, bucket = self.whole, self.whole.bucket_of[number]
        module, op = whole.module_of[number], whole.op_of[number]
        if mark.phase in ("forward", "backward"):
            self._enter(_block_of(module), mark)
        share = self.share[bucket]
        if bucket == _WEIGHTS and not module:
            share = _Share(1)  # token ids, which no rank shares
        elif bucket == _WEIGHTS and op == "adapter":
            share = replace(share, times=1)
        elif bucket == _TEMPORARIES and mark.phase == "optimizer":
            share = self.share[_STATE]
        is_passing = mark.phase in ("forward", "backward") and self.reduces
        if is_passing and bucket == _GRADIENTS:
            self.groups[self.at].waiting[number] = self.waiting_share.of(size_bytes), share.of(size_bytes)
            share = self.waiting_share
        elif is_passing and self.adds_whole and _is_gradient(op) and (module or not self.tied):
            self.adding[number] = self.groups[self.at]
        self.stands.append(self.out.allocate(share.of(size_bytes), bucket, op, module))

    def _begin(self, mark: Mark) -> None:
        if mark.step == 1 and not self.groups:
            self._group_parameters()
            if self.mode == "ddp":
                self._hold(self.buckets_bytes, "gradient buckets")
        if mark.phase == "forward" and self.gathers:
            self._unshard(self.groups[_ROOT])
        if mark.phase == "backward":
            if self.gathers:
                self._unshard(self.groups[_ROOT])
                self._let_go()
                self._fetch(f"layers.{len(self.groups) - 2}")
            elif self.mode in ("zero1", "zero2"):
                self.bucket = self._hold(self.buckets_bytes, "reduce bucket")

    def _end(self, mark: Mark) -> None:
        if mark.phase not in ("forward", "backward"):
            return
        self._enter(_ROOT, mark)
        if mark.phase == "forward":
            if self.reshards:
                self._drop(self.groups[_ROOT])
            self._let_go()
            return
        if self.reduces:
            self._reduce(self.groups[_ROOT])
        for name in ("reducing", "bucket"):
            self.out.free(getattr(self, name))
            setattr(self, name, -1)

    def _group_parameters(self) -> None:
        """Bytes of every block's parameters as they are gathered."""
        live: dict[int, int] = {}
        number = 0
        for value in self.whole.events[: next(mark.event for mark in self.whole.marks if mark.step)]:
            if value > 0:
                live[number] = value
                number += 1
            else:
                del live[~value]
        self.groups[_ROOT] = _Group()
        for number, size in live.items():
            module = self.whole.module_of[number]
            if self.whole.bucket_of[number] == _WEIGHTS and module:
                self.groups.setdefault(_block_of(module), _Group()).sizes.append(size // self.split)

    def _enter(self, block: str, mark: Mark) -> None:
        """From one block, or what lies outside them, to another."""
        if block == self.at:
            return
        left, self.at = self.at, block
        if mark.phase == "forward":
            if self.gathers and left != _ROOT and self.reshards:
                self._drop(self.groups[left])
            if self.gathers and block != _ROOT:
                self._unshard(self.groups[block])
            return
        if left != _ROOT and self.reduces:
            self._reduce(self.groups[left])
        if block != _ROOT and self.gathers:
            self._unshard(self.groups[block])
            self._let_go()
            self._fetch(f"layers.{int(block.removeprefix('layers.')) - 1}")

    def _fetch(self, block: str) -> None:
        group = self.groups.get(block)
        if group is not None and not group.full and group.buffer < 0:
            self._gather(group)

    def _gather(self, group: _Group) -> None:
        group.buffer = self._hold(sum(group.sizes), "all-gather output", _GATHER_STREAM)

    def _unshard(self, group: _Group) -> None:
        """In the forward pass the buffer of one group lives until the next is copied out of its own."""
        if group.full:
            return
        if group.buffer < 0:
            self._gather(group)
        group.full = [self._hold(size, "gathered parameter") for size in group.sizes]
        self._let_go()
        self.fetched, group.buffer = group.buffer, -1

    def _let_go(self) -> None:
        self.out.free(self.fetched)
        self.fetched = -1

    def _drop(self, group: _Group) -> None:
        for number in group.full:
            self.out.free(number)
        group.full = []

    def _reduce(self, group: _Group) -> None:
        """The whole gradients become this rank's shards; the input of the reduction lives until the next."""
        out = self.out
        if self.gathers:
            self._drop(group)
            input_bytes = self.times * sum(whole for whole, _ in group.waiting.values())
            group.reduced_bytes = input_bytes or group.reduced_bytes
            out.free(self.reducing)
            self.reducing = self._hold(group.reduced_bytes, "reduce-scatter input")
        for number in group.added:
            out.free(number)
        group.added.clear()
        for number in group.waiting:
            out.free(self.stands[number])
        for number, (_, size) in group.waiting.items():
            self.stands[number] = out.allocate(size, _GRADIENTS, "reduce-scatter output")
            if size:
                out.stream_of[self.stands[number]] = _REDUCE_STREAM
        group.waiting.clear()

    def _hold(self, size_bytes: int, op: str, stream: int = 0) -> int:
        number = self.out.allocate(size_bytes, _COMMUNICATION, op)
        if stream and number >= 0:
            self.out.stream_of[number] = stream
        return number


def _converted_in_place(whole: Recording) -> list[int]:
    """The events with each 16-bit gradient freed before its fp32 one is made, as a block's wait for their reduction."""
    events = [*whole.events]
    number = 0
    for at, value in enumerate(whole.events[:-1]):
        if value > 0:
            if whole.op_of[number] == "fp32 gradient" and events[at + 1] < 0:
                events[at], events[at + 1] = events[at + 1], value
            number += 1
    return events


def _is_gradient(op: str) -> bool:
    return "weight gradient" in op or op == "embedding backward"


def _block_of(module: str) -> str:
    if not module.startswith("layers."):
        return _ROOT
    return ".".join(module.split(".", 2)[:2])
