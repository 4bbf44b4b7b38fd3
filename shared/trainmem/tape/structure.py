"""From a job and an architecture to the structure of its step."""

from __future__ import annotations

import math
from functools import lru_cache

from trainmem.job import ACTIVATION_DTYPE_BYTES, WEIGHT_DTYPE_BYTES, Lora, TrainingJob
from trainmem.model import Architecture
from trainmem.model.lora import adapters
from trainmem.tape.attention import Kernel
from trainmem.tape.claims import check_claims, fully_sharded
from trainmem.tape.families import FIRST_OF_ITS_KIND
from trainmem.tape.four_bit import reads_packed
from trainmem.tape.hardware import hardware, sdpa_kernel
from trainmem.tape.kernels import many_layer_norm_rows
from trainmem.tape.model import READ, Structure
from trainmem.tape.stand_ins import StandIns, each_for_itself, stand_ins

__all__ = [
    "quantized_weights",
    "standing",
    "structure_of",
    "weight_itemsize",
]


def weight_itemsize(job: TrainingJob) -> int:
    """Bytes of an element of the weights that the model computes with."""
    return WEIGHT_DTYPE_BYTES[job.precision]


def _segment(job: TrainingJob, architecture: Architecture) -> int:
    """Blocks that are checkpointed as one: ceil(sqrt(L)) under sqrt checkpointing, else 1."""
    if job.checkpointing != "sqrt":
        return 1
    return math.isqrt(architecture.layers - 1) + 1 if architecture.layers > 1 else 1


def standing(job: TrainingJob, architecture: Architecture) -> StandIns:
    """Which blocks a program of this job runs for all of the model's."""
    # autocast keeps its copy of the graph's leaf, so that the first block may lay its tensors down otherwise than
    # others, and the second block frees some of them
    reach = 2 if _autocast(job) and _input_gradients(job) else 1
    segment = _segment(job, architecture)
    if segment > 1 and job.base_quantization == "int8":
        # what an 8-bit layer's context holds in a second run dies with that of the whole segment
        return each_for_itself(len(architecture.layer_kinds), segment)
    return stand_ins(architecture.layer_kinds, segment, reach, minds_kinds=fully_sharded(job))


def _autocast(job: TrainingJob) -> int:
    """Bytes of an element in matrix products under autocast, 0 without."""
    return 2 if job.precision in ("amp_bf16", "amp_fp16") else 0


def _input_gradients(job: TrainingJob) -> bool:
    """PEFT asks for gradients of the token embeddings where blocks are checkpointed."""
    return job.lora is not None and job.checkpointing != "none"


def attention_kernels(job: TrainingJob, architecture: Architecture) -> tuple[Kernel, Kernel]:
    """The kernels that scaled_dot_product_attention picks without a mask and with one.

    transformers leaves grouped heads to the kernel without a mask only (sdpa_attention.use_gqa_in_sdpa).
    """
    itemsize = ACTIVATION_DTYPE_BYTES[job.precision]
    chip, bf16 = hardware(job.device), itemsize == 2 and job.precision != "amp_fp16"
    drops = architecture.dropout.get("attention", 0.0) > 0
    grouped = architecture.kv_heads != architecture.heads

    def kernel(*, masked: bool) -> Kernel:
        return sdpa_kernel(
            chip,
            itemsize,
            architecture.head_dim,
            bf16=bf16,
            grouped=grouped and not masked,
            masked=masked,
            drops=drops,
        )

    return kernel(masked=False), kernel(masked=True)


def window_hides(job: TrainingJob, architecture: Architecture) -> bool:
    """Whether sliding blocks see less than the whole sequence, so that fused attention needs a mask.

    masking_utils compares the length with the window, an encoder's with the half window to either side.
    """
    window = architecture.extra.get("sliding_window")
    if not window:
        return False
    reach = int(window) // 2 if architecture.extra.get("encoder") else int(window)
    return job.sequence_length >= reach


@lru_cache(maxsize=2048)
def _names(architecture: Architecture) -> tuple[tuple[tuple[str, tuple[str, ...]], ...], tuple[str, ...]]:
    inside = tuple(
        (kind, tuple(p.name for p in parts)) for kind, parts in sorted(architecture.blocks.items())
    )
    outside = (*architecture.embeddings, *architecture.final, *architecture.head)
    return inside, tuple(p.name for p in outside)


@lru_cache(maxsize=512)
def adapted_weights(architecture: Architecture, lora: Lora | None) -> frozenset[str] | None:
    """Names, relative to their block, of the weights that get an adapter; None without LoRA."""
    if lora is None:
        return None
    found = adapters(architecture, lora)
    groups = (found.embeddings, found.final, found.head, *found.blocks.values())
    return frozenset(a.parameter.name for parts in groups for a in parts)


@lru_cache(maxsize=512)
def quantized_weights(architecture: Architecture) -> frozenset[str]:
    """Names of the weights that a packed base packs: ordinary linear layers, never the head or Conv1D."""
    if not architecture.has_linear_layers:
        return frozenset()
    groups = (architecture.embeddings, architecture.final, architecture.head, *architecture.blocks.values())
    return frozenset(p.name for parts in groups for p in parts if p.kind == "linear")


def _read_packed(job: TrainingJob, architecture: Architecture) -> frozenset[str]:
    """The 4-bit weights that a kernel reads as they are packed; what is pooled is one row a sequence."""
    if job.base_quantization != "nf4":
        return frozenset()
    chip, tokens = hardware(job.device), job.micro_batch * job.sequence_length
    pooled = job.micro_batch if job.task == "sequence_classification" else tokens
    met = [(parts, tokens) for parts in (architecture.embeddings, *architecture.blocks.values())]
    met += [(architecture.final, pooled), (architecture.head, pooled)]
    packed = quantized_weights(architecture)
    return frozenset(
        p.name
        for parts, rows in met
        for p in parts
        if p.name in packed and reads_packed(chip, rows, *p.shape)
    )


def _collectives(job: TrainingJob) -> tuple[int, int, bool, bool, bool] | None:
    """(bytes gathered, bytes reduced, whether shards are cast first, blocks freed after forward, rank alone)."""
    if not fully_sharded(job):
        return None
    stored = weight_itemsize(job)
    mixed = job.precision == "fsdp_mp_bf16"
    alone = job.sharding.data_parallel == 1
    return 2 if mixed else stored, 4 if mixed else stored, mixed, job.sharding.reshard_after_forward, alone


def _grouped_products(job: TrainingJob) -> str:
    """GroupedBlas.cpp has one kernel for bf16 on some GPUs and cuBLAS elsewhere; it wants Ampere at least."""
    chip = hardware(job.device)
    if chip.capability < (8, 0):
        return "fallback"
    return "kernel" if chip.grouped_mm else "products"


def _frequency_checks(architecture: Architecture) -> int:
    """How often modeling_rope_utils.dynamic_rope_update looks at the sequence's length.

    Dynamic scaling grows beyond the trained length and goes back below it; LongRoPE has factors for either side,
    and above it computes its vector of frequencies anew, which is not laid down.
    """
    types = {buffer.rope_type for buffer in architecture.buffers}
    return 2 if "dynamic" in types else 1 if "longrope" in types else 0


@lru_cache(maxsize=512)
def _root(architecture: Architecture) -> tuple[str, ...]:
    """Parameters outside the blocks, a tied head left out."""
    outside = (*architecture.embeddings, *architecture.final, *architecture.head)
    return tuple(p.name for p in outside if not (architecture.tied and p.kind == "head"))


def structure_of(job: TrainingJob, architecture: Architecture, *, accumulating: bool = False) -> Structure:
    """All of a job that decides the order of its events; ``accumulating``: gradients exist already."""
    check_claims(job, architecture)
    kinds = architecture.layer_kinds
    inside, outside = _names(architecture)
    stands = standing(job, architecture)
    kernel, masked_kernel = attention_kernels(job, architecture)
    return Structure(
        family=FIRST_OF_ITS_KIND[architecture.family],
        task=job.task,
        layer_kinds=tuple([kinds[block] for block in stands.shown]),
        segments=stands.shown_segments if job.checkpointing == "sqrt" else (),
        wide_gradients=job.precision == "bf16_master_fp32_grads" and job.lora is None,
        parameters=inside,
        outside=outside,
        extra=tuple(sorted((key, value) for key, value in architecture.extra.items() if key in READ)),
        grouped=architecture.kv_heads != architecture.heads,
        tied=architecture.tied,
        one_head=architecture.kv_heads == 1,
        weight_itemsize=2 if job.precision == "fsdp_mp_bf16" else weight_itemsize(job),
        root=_root(architecture),
        sharded=_collectives(job),
        autocast=_autocast(job),
        # gpt-oss has no fused attention in transformers
        attention="eager" if architecture.extra.get("attention_sinks") else job.attention,
        kernel=kernel,
        masked_kernel=masked_kernel,
        pads_heads=kernel == "flash" and architecture.head_dim % 8 != 0,
        checkpointing=job.checkpointing,
        loss=job.loss,
        lora=adapted_weights(architecture, job.lora),
        adapter_itemsize=4,
        quantization=job.base_quantization,
        quantized=quantized_weights(architecture) if job.base_quantization != "none" else frozenset(),
        read_packed=_read_packed(job, architecture),
        dropout=tuple(sorted((where, rate > 0) for where, rate in architecture.dropout.items())),
        accumulating=accumulating,
        scaled_loss=job.accumulation > 1,
        loss_scaling=job.precision == "amp_fp16",
        windowed=window_hides(job, architecture),
        partial_rotary=(architecture.extra.get("rotary_dim") or architecture.head_dim)
        != architecture.head_dim,
        batch_of_one=job.micro_batch == 1,
        many_rows=many_layer_norm_rows(
            job.micro_batch * job.sequence_length, architecture.hidden_size, hardware(job.device).sm_count
        ),
        frequency_checks=_frequency_checks(architecture),
        grouped_products=_grouped_products(job) if architecture.extra.get("experts") else "kernel",
        input_gradients=_input_gradients(job),
    )
