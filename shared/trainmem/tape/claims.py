"""What the tape replays, and its one-line refusals of the rest, which the whiteboard and the trace answer."""

from __future__ import annotations

from trainmem.job import TrainingJob
from trainmem.model import Architecture
from trainmem.tape.activations import ACTIVATIONS
from trainmem.tape.families import FORWARD

__all__ = ["Unsupported", "check_claims", "fully_sharded", "has_masters"]


class Unsupported(Exception):
    """The tape does not model this family or lever; the message says which."""


_OPTIONS = {
    "chunk_size_feed_forward": "an MLP that runs in chunks of the sequence",
    "layerdrop": "blocks that are left out at random",
    "output_attentions": "attention probabilities that are kept to be returned",
    "output_hidden_states": "hidden states that are kept to be returned",
    "output_router_logits": "the loss that balances experts",
    "use_bidirectional_attention": "a decoder's attention to later tokens",
}
"""Keys of a config that change a step where they are set, in the families that read them."""

_READ_BY = {
    "chunk_size_feed_forward": ("bert",),
    "layerdrop": ("opt",),
    "output_router_logits": ("mixtral", "qwen3_moe", "gpt_oss"),
}


def fully_sharded(job: TrainingJob) -> bool:
    """Whether FSDP2 shards the parameters of the job."""
    return job.sharding.mode == "fsdp2" or job.precision == "fsdp_mp_bf16"


def has_masters(job: TrainingJob) -> bool:
    """Whether the optimizer updates fp32 copies of trained 16-bit weights."""
    return job.lora is None and job.precision in ("bf16_master", "bf16_master_fp32_grads")


def check_claims(job: TrainingJob, architecture: Architecture) -> None:
    """Raise `Unsupported`, naming the field, for what the tape does not replay."""
    if architecture.family not in FORWARD:
        named = (job.config or {}).get("model_type", architecture.family)
        raise Unsupported(f"model_type: the tape has no block for {named}")
    for key in ("activation", "classifier_activation"):
        activation = architecture.extra.get(key)
        if activation is not None and activation not in ACTIVATIONS:
            raise Unsupported(f"{key}: the tape does not know {activation}")
    if architecture.extra.get("upcast_attention") and job.attention == "eager":
        raise Unsupported("reorder_and_upcast_attn: the tape does not replay GPT-2's eager attention in fp32")
    for key, what in _OPTIONS.items():
        if (job.config or {}).get(key) and architecture.family in _READ_BY.get(key, FORWARD):
            raise Unsupported(f"{key}: the tape does not replay {what}")
    _check_positions(job, architecture)
    _check_experts(job, architecture)
    _check_sharding(job)


def _check_positions(job: TrainingJob, architecture: Architecture) -> None:
    types = {buffer.rope_type for buffer in architecture.buffers if buffer.rope_type is not None}
    longest = architecture.max_positions
    grows = "dynamic" in types and longest is not None and job.sequence_length > longest
    if grows or (len(types) > 1 and types & {"dynamic", "longrope"}):
        raise Unsupported("rope_parameters: the tape does not replay frequencies that follow the sequence")


def _check_experts(job: TrainingJob, architecture: Architecture) -> None:
    """A grouped product's rows begin at whole 16 bytes (create_grouped_gemm_output_tensor)."""
    if not architecture.extra.get("experts"):
        return
    elements = 4 if job.precision in ("fp32", "amp_bf16", "amp_fp16") else 8
    widths = {
        "hidden_size": architecture.hidden_size,
        "the experts' width": int(architecture.extra["moe_intermediate_size"] or 0),
    }
    for name, width in widths.items():
        if width % elements:
            raise Unsupported(
                f"{name}: the tape replays experts of whole {elements} elements, not of {width}"
            )


def _check_sharding(job: TrainingJob) -> None:
    sharding = job.sharding
    if sharding.mode not in ("none", "fsdp2"):
        raise Unsupported(f"sharding.mode: the tape replays one device or FSDP2, not {sharding.mode}")
    if sharding.tensor_parallel * sharding.pipeline_parallel > 1:
        raise Unsupported("sharding: the tape replays neither tensor nor pipeline parallelism")
    if sharding.offload != "none":
        raise Unsupported(f"sharding.offload: the tape does not replay {sharding.offload}")
    if fully_sharded(job) and has_masters(job):
        raise Unsupported(
            f"precision: the tape does not replay {job.precision}'s master weights as FSDP2's shards"
        )
    if fully_sharded(job) and (job.lora is not None or job.checkpointing == "sqrt"):
        raise Unsupported("sharding: the tape replays FSDP2 without adapters and without segments of blocks")
