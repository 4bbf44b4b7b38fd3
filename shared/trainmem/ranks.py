"""One rank of a sharded job that the tape does not replay: the unsharded step's events, each on its share.

The tape records the job on one device. Here every allocation is divided by the ranks that share it, gradients lie
whole until their block is through the backward pass, and what collectives hold comes and goes with the blocks. So
the peak is looked for anew, at whichever instant it then comes.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import compress, count, groupby, islice, pairwise

from trainmem.buckets import BUCKETS
from trainmem.job import WEIGHT_DTYPE_BYTES, Sharding, TrainingJob
from trainmem.model import Architecture
from trainmem.rank_shares import RankSizes, Share, bucket_shares
from trainmem.recording import Mark, Recording
from trainmem.tape.step import STEPS, record_by_step
from trainmem.whiteboard import whiteboard

__all__ = ["record_rank"]

_WEIGHTS, _GRADIENTS, _STATE, _COMMUNICATION = map(
    BUCKETS.index, ("weights", "gradients", "optimizer_state", "communication")
)
_GATHER_STREAM, _REDUCE_STREAM = 1, 2
_ROOT = ""


def record_rank(job: TrainingJob, architecture: Architecture, steps: int = STEPS) -> Recording:
    """So many steps of one rank of ``job``, made from those of the job on one device.

    Equations: weights, master weights, gradients and optimizer state over the ranks that share them (ZeRO,
    Rajbhandari et al. 2020, section 5), the optimizer's temporaries like its state; activations and logits as the
    whiteboard divides them; under ZeRO 3 and FSDP2 the root's parameters whole through forward and backward, those
    of the block at work, the buffer of the next, the block's whole gradients and the input of its reduction
    (torch/distributed/fsdp/_fully_shard); DDP's buckets as large as the gradients, one bucket of ZeRO 1 and 2.
    Leaves out: NCCL's own buffers and uneven shards.
    Raises `Unsupported` where the tape does not replay the job on one device.
    """
    return _Rank(job, architecture, steps).rewritten()


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


class _Rank:
    def __init__(self, job: TrainingJob, architecture: Architecture, steps: int) -> None:
        self.mode = job.sharding.mode
        precision = job.precision
        if precision == "fsdp_mp_bf16":
            # FSDP's own mixed precision computes in bf16 and keeps all else in fp32; DDP has no part in it.
            precision = "fp32" if self.mode == "ddp" else "bf16"
        self.times = WEIGHT_DTYPE_BYTES[job.precision] // WEIGHT_DTYPE_BYTES[precision]
        alone = replace(job, precision=precision, sharding=Sharding())
        self.whole = next(islice(record_by_step(alone, architecture), steps, None))
        self.gathers = self.mode in ("zero3", "fsdp2")
        self.reduces = self.gathers or self.mode == "zero2"
        self.reshards = job.sharding.reshard_after_forward or self.mode == "zero3"
        self.split = job.sharding.tensor_parallel * job.sharding.pipeline_parallel
        rank = whiteboard(job, architecture)
        self.buckets_bytes = 0 if self.gathers else rank.buckets["communication"]
        shares = bucket_shares(job, architecture, rank, self.times)
        # a gradient is 16 bits wide until its block's are reduced, where it then is fp32
        narrow = self.reduces and job.lora is None and job.precision == "bf16_master_fp32_grads"
        waiting = Share(self.split * (2 if narrow else 1))
        self.adapter = replace(shares[_WEIGHTS], times=1)
        self.sizes = RankSizes(shares)
        self.passing_sizes = RankSizes(shares, gradients=waiting) if self.reduces else self.sizes
        self.stepping_sizes = RankSizes(shares, temporaries=shares[_STATE])
        events = self.whole.events.tolist()
        self.events = _converted_in_place(events, self.whole.op_of) if narrow else events
        self.made = [event for event, value in enumerate(self.events) if value > 0]
        self.out = Recording(
            parameters=self.whole.parameters,
            trainable_parameters=self.whole.trainable_parameters,
            warnings=[*self.whole.warnings],
        )
        self.stands: list[int] = []
        # a gradient that one device adds to another at once waits whole for its block's reduction; autocast's is cast
        self.adds_whole = self.reduces and not narrow and not job.precision.startswith("amp")
        self.adding: dict[int, tuple[_Group, int]] = {}
        # the two gradients of a tied embedding are one by then
        self.tied = architecture.tied
        self.groups: dict[str, _Group] = {}
        self.at = _ROOT
        self.fetched = self.reducing = self.bucket = -1

    def rewritten(self) -> Recording:
        whole, out = self.whole, self.out
        ends = [*(mark.event for mark in whole.marks), len(self.events)]
        for mark, (begin, end) in zip(whole.marks, pairwise(ends), strict=True):
            out.mark(mark.step, mark.phase, mark.micro)
            self._begin(mark)
            self._phase(mark, begin, end)
            self._end(mark)
        return out

    def _phase(self, mark: Mark, begin: int, end: int) -> None:
        """All events of a phase; in a pass, collectives come where another block allocates."""
        emptied = {event for event in self.whole.empty_cache_before if begin <= event < end}
        entered: dict[int, str] = {}
        sizes = self.stepping_sizes if mark.phase == "optimizer" else self.sizes
        is_passing = mark.phase in ("forward", "backward") and (self.gathers or self.reduces)
        if is_passing:
            sizes, entered = self.passing_sizes, self._entered(end)
        for start, until in pairwise(sorted({begin, end, *emptied, *entered})):
            if start in emptied:
                self.out.empty_cache()
            if start in entered:
                self._enter(entered[start], mark)
            self._play(self.events[start:until], sizes, is_passing)

    def _entered(self, end: int) -> dict[int, str]:
        """Which block begins to allocate before which event, up to one."""
        first = len(self.stands)
        last = bisect_left(self.made, end, first)
        found: dict[int, str] = {}
        for block, run in groupby(map(_block_of, self.whole.module_of[first:last])):
            found[self.made[first]] = block
            first += len(list(run))
        return found

    def _play(self, values: list[int], sizes: RankSizes, is_passing: bool) -> None:
        """Events between two collectives, each allocation at this rank's size; one of nothing has number -1."""
        asked = [value for value in values if value > 0]
        first = len(self.stands)
        own = slice(first, first + len(asked))
        whole, out, stands = self.whole, self.out, self.stands
        buckets, ops, modules = whole.bucket_of[own], whole.op_of[own], whole.module_of[own]
        taken = [sizes[each] for each in zip(buckets, asked, strict=True)]
        if _WEIGHTS in buckets:
            for at, bucket in enumerate(buckets):
                if bucket == _WEIGHTS and not modules[at]:
                    taken[at] = asked[at]  # token ids, which no rank shares
                elif bucket == _WEIGHTS and ops[at] == "adapter":
                    taken[at] = self.adapter.of(asked[at])
        numbers = count(len(out.bucket_of))
        if all(taken):
            stands += islice(numbers, len(taken))
            out.bucket_of += buckets
            out.op_of += ops
            out.module_of += modules
        else:
            stands += [next(numbers) if size else -1 for size in taken]
            out.bucket_of += compress(buckets, taken)
            out.op_of += compress(ops, taken)
            out.module_of += compress(modules, taken)
        if is_passing and self.reduces:
            self._await(first, buckets, ops, modules, asked)
        following = iter(taken)
        played = [next(following) if value > 0 else ~stands[~value] for value in values]
        out.events.extend(filter(None, played))
        if self.reduces and self.groups:
            self._forget(values)

    def _await(
        self, first: int, buckets: list[int], ops: list[str], modules: list[str], asked: list[int]
    ) -> None:
        """Gradients wait for their block's reduction, and so do those that one device adds to others: not freed."""
        adding = {op for op in {*ops} if _is_gradient(op)} if self.adds_whole else set()
        if _GRADIENTS not in buckets and not adding:
            return
        group = self.groups[self.at]
        for at, (bucket, op) in enumerate(zip(buckets, ops, strict=True)):
            if bucket == _GRADIENTS:
                key = bucket, asked[at]
                group.waiting[first + at] = self.passing_sizes[key], self.sizes[key]
            elif op in adding and (modules[at] or not self.tied):
                self.adding[first + at] = group, self.stands[first + at]
                self.stands[first + at] = -1

    def _forget(self, values: list[int]) -> None:
        """What was freed waits no longer, but for what its block's reduction frees."""
        waiting, adding = self.groups[self.at].waiting, self.adding
        ends = {~number for number in (*waiting, *adding)}
        for value in [value for value in values if value in ends] if ends else ():
            if ~value in adding:
                group, stands = adding.pop(~value)
                group.added.append(stands)
            else:
                del waiting[~value]

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


def _converted_in_place(events: list[int], op_of: list[str]) -> list[int]:
    """The events with each 16-bit gradient freed before its fp32 one is made, as a block's wait for their reduction."""
    out = [*events]
    number = 0
    for at, value in enumerate(events[:-1]):
        if value > 0:
            if op_of[number] == "fp32 gradient" and out[at + 1] < 0:
                out[at], out[at + 1] = out[at + 1], value
            number += 1
    return out


def _is_gradient(op: str) -> bool:
    return "weight gradient" in op or op == "embedding backward"


@lru_cache(maxsize=1 << 14)
def _block_of(module: str) -> str:
    if not module.startswith("layers."):
        return _ROOT
    return ".".join(module.split(".", 2)[:2])
