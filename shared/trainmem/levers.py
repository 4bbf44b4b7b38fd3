"""The levers that save memory, cheapest first, as a senior engineer would pull them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from trainmem.device import device
from trainmem.job import MOST_COUNT, Lora, Precision, Sharding, TrainingJob
from trainmem.model import resolve

__all__ = ["ALL_LEVERS", "CLUSTER_LEVERS", "LEVERS_BY_COST", "Mathematics", "MemoryLever"]

Mathematics = Literal["identical", "changes numerics", "trains fewer parameters"]

_STOCHASTIC = "pure bf16 with stochastic rounding"
_AUTOCAST: tuple[Precision, ...] = ("amp_bf16", "amp_fp16", "fsdp_mp_bf16")
MOST_RANKS = 64
"""Beyond it a shard of the state is small beside what every rank holds whole."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryLever:
    """One change to a job. ``pull`` answers the changed job, or None where it does not apply.

    ``name`` is a noun phrase for sentences ("checkpointing every block"). A lever that ``repeats`` can be
    pulled again on its own answer: a micro batch is halved, ranks are doubled. ``settings`` words such an answer.
    """

    key: str
    name: str
    mathematics: Mathematics
    pull: Callable[[TrainingJob], TrainingJob | None]
    repeats: bool = False
    settings: Callable[[TrainingJob], str] | None = None

    def changes(self, before: TrainingJob, after: TrainingJob) -> Mathematics:
        """What pulling it does to the mathematics of ``before``, whose precision may change along."""
        if self.mathematics == "trains fewer parameters" and before.lora is not None:
            return "changes numerics"
        if self.mathematics == "identical" and after.precision != before.precision:
            return "changes numerics"
        return self.mathematics

    def describe(self, pulled: TrainingJob) -> str:
        """What ``pulled`` was set to, where the name alone leaves open how often the lever was pulled."""
        return self.settings(pulled) if self.settings is not None else self.name


def _fused_attention(job: TrainingJob) -> TrainingJob | None:
    return job.with_(attention="sdpa") if job.attention == "eager" else None


def _set_to_none(job: TrainingJob) -> TrainingJob | None:
    return job.with_(zero_grad="none") if job.zero_grad == "zeros" else None


def _fused_optimizer(job: TrainingJob) -> TrainingJob | None:
    return job.with_(optimizer="adamw_fused") if job.optimizer in ("adamw", "adamw_loop") else None


def _halve_micro_batch(job: TrainingJob) -> TrainingJob | None:
    if job.micro_batch == 1 or job.micro_batch % 2 or job.accumulation * 2 > MOST_COUNT:
        return None
    return job.with_(micro_batch=job.micro_batch // 2, accumulation=job.accumulation * 2)


def _micro_batches(job: TrainingJob) -> str:
    return f"micro batch {job.micro_batch} with accumulation {job.accumulation}"


def _fused_loss(job: TrainingJob) -> TrainingJob | None:
    if job.loss == "liger_fused" or job.task != "causal_lm":
        return None
    return job.with_(loss="liger_fused")


def _checkpointing(job: TrainingJob) -> TrainingJob | None:
    return job.with_(checkpointing="full") if job.checkpointing != "full" else None


def _eight_bit(job: TrainingJob) -> TrainingJob | None:
    if job.optimizer not in ("adamw", "adamw_fused", "adamw_loop") or job.lora is not None:
        return None
    return job.with_(optimizer="adamw8bit")


def _sixteen_bit(job: TrainingJob) -> TrainingJob | None:
    """Weights in 16 bit: trained ones need stochastic rounding to learn in it, a frozen base does not."""
    wide = ("fp32", "amp_bf16", "amp_fp16", "bf16_master", "bf16_master_fp32_grads")
    if job.precision not in wide:
        return None
    return job.with_(precision="bf16_stochastic" if job.lora is None else "bf16")


def _in_sixteen_bit(job: TrainingJob) -> str:
    return _STOCHASTIC if job.lora is None else "the frozen base in 16 bit (pure bf16)"


def _lora(job: TrainingJob) -> TrainingJob | None:
    if job.lora is not None or job.task != "causal_lm":
        return None
    return job.with_(lora=Lora(), precision="bf16")


def _qlora(job: TrainingJob) -> TrainingJob | None:
    if job.base_quantization != "none" or job.task != "causal_lm":
        return None
    if not resolve(job).architecture.has_linear_layers:
        return None
    return job.with_(lora=job.lora or Lora(), precision="bf16", base_quantization="nf4")


def _shard(job: TrainingJob) -> TrainingJob | None:
    sharding = job.sharding
    ranks = 2 * sharding.data_parallel if sharding.mode == "fsdp2" else max(2, sharding.data_parallel)
    if ranks > MOST_RANKS or sharding.offload != "none":
        return None
    # Autocast would keep a 16-bit copy of every weight beside the shards; FSDP2's own policy gathers in 16 bit.
    precision = "fsdp_mp_bf16" if job.precision == "amp_bf16" else job.precision
    return job.with_(precision=precision, sharding=replace(sharding, mode="fsdp2", data_parallel=ranks))


def _offload(job: TrainingJob) -> TrainingJob | None:
    """DeepSpeed's ZeRO-Offload: optimizer state and master weights live in the host's memory.

    Not where CPU and GPU share one memory: there it moves nothing.
    """
    if job.sharding.mode != "none" or job.lora is not None or device(job.device).integrated:
        return None
    # It keeps 16-bit parameters on the device, and the fp32 masters with the state on the host.
    precision = "bf16_master" if job.precision in _AUTOCAST else job.precision
    return job.with_(precision=precision, sharding=Sharding(mode="zero2", offload="cpu"))


LEVERS_BY_COST: tuple[MemoryLever, ...] = (
    MemoryLever(key="attention", name="fused attention", mathematics="identical", pull=_fused_attention),
    MemoryLever(
        key="zero_grad",
        name="zero_grad(set_to_none=True)",
        mathematics="identical",
        pull=_set_to_none,
    ),
    MemoryLever(
        key="optimizer_fused",
        name="the fused optimizer",
        mathematics="identical",
        pull=_fused_optimizer,
    ),
    MemoryLever(
        key="micro_batch",
        name="half the micro batch with twice the accumulation",
        mathematics="identical",
        pull=_halve_micro_batch,
        repeats=True,
        settings=_micro_batches,
    ),
    MemoryLever(key="loss", name="the fused loss", mathematics="identical", pull=_fused_loss),
    MemoryLever(key="checkpointing", name="checkpointing", mathematics="identical", pull=_checkpointing),
    MemoryLever(
        key="optimizer_8bit", name="8-bit optimizer state", mathematics="changes numerics", pull=_eight_bit
    ),
    MemoryLever(
        key="precision",
        name=_STOCHASTIC,
        mathematics="changes numerics",
        pull=_sixteen_bit,
        settings=_in_sixteen_bit,
    ),
    MemoryLever(key="lora", name="LoRA on a 16-bit base", mathematics="trains fewer parameters", pull=_lora),
    MemoryLever(
        key="qlora",
        name="QLoRA in bf16",
        mathematics="trains fewer parameters",
        pull=_qlora,
    ),
)
"""What one device can do by itself."""

CLUSTER_LEVERS: tuple[MemoryLever, ...] = (
    MemoryLever(
        key="sharding", name="FSDP2 over more devices", mathematics="identical", pull=_shard, repeats=True
    ),
    MemoryLever(
        key="offload", name="ZeRO-Offload to the host", mathematics="changes numerics", pull=_offload
    ),
)
"""What needs more devices, or a host beside the device."""

ALL_LEVERS: tuple[MemoryLever, ...] = (*LEVERS_BY_COST, *CLUSTER_LEVERS)
