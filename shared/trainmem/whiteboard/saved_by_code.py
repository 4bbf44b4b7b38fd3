"""What transformers' blocks save for backward beyond the textbook count, tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trainmem.job import TrainingJob
from trainmem.model.architecture import Architecture
from trainmem.whiteboard.activations import norms_of_width
from trainmem.whiteboard.adapters import adapter_inputs, frozen_base

__all__ = ["Beyond", "inputs_of_int8_layers", "saved_beyond_board", "scores_beyond_board"]


@dataclass(frozen=True, slots=True)
class Beyond:
    """Bytes a token and block that the code saves beyond the board (negative: saves less), and why."""

    name: str
    bytes_per_token: int
    why: str


def _fused(architecture: Architecture, width: int) -> bool:
    block = architecture.blocks[architecture.layer_kinds[0]]
    return any(p.kind == "linear" and width in p.shape for p in block)


def _norms(job: TrainingJob, architecture: Architecture) -> Iterator[Beyond]:
    h = architecture.hidden_size
    n, amp = norms_of_width(architecture, h), job.precision.startswith("amp")
    if amp:
        yield Beyond(
            "fp32 residual stream",
            2 * n * h,
            "autocast leaves norms and the sums between blocks in fp32, so each norm's input is 4 bytes",
        )
    if architecture.extra.get("norm") != "rms_norm":
        return
    q_and_k = (architecture.heads + architecture.kv_heads) * architecture.head_dim
    width = n * h + (q_and_k if architecture.extra.get("qk_norm") else 0)
    if job.precision != "fp32":
        upcast = width - n * h if amp else width
        if upcast:
            yield Beyond(
                "RMSNorm works in fp32", 2 * upcast, "it converts its 16-bit input and saves the copy"
            )
    if job.lora is None:
        each = 4 if job.precision == "fp32" else 2
        size = 4 * n * h + 2 * (width - n * h) if amp else each * width
        yield Beyond(
            "RMSNorm's normalised input", size, "its weight's gradient needs it, beside what the norm saved"
        )


def _linear_inputs(job: TrainingJob, architecture: Architecture) -> Iterator[Beyond]:
    h, f = architecture.hidden_size, architecture.intermediate_size
    q, k = architecture.heads * architecture.head_dim, architecture.kv_heads * architecture.head_dim
    if job.precision.startswith("amp"):
        copies = 0 if _fused(architecture, q + 2 * k) else 2
        if architecture.extra.get("gated") and not architecture.extra.get("experts"):
            copies += 0 if _fused(architecture, 2 * f) else 1
        if copies:
            yield Beyond(
                "a 16-bit copy for each linear layer",
                2 * copies * h,
                "autocast converts a norm's fp32 output anew for each layer that reads it, and all are saved",
            )
    elif job.lora is not None and job.precision != "fp32":
        yield Beyond(
            "frozen layers save no input",
            -2 * (2 * h + f),
            "only a weight that trains needs its input in the backward pass",
        )
        yield Beyond(
            "adapters read fp32",
            4 * adapter_inputs(architecture, job.lora) // architecture.layers,
            "PEFT keeps adapters in fp32 and converts the input of each adapted layer on its own",
        )


def _packed_layers(job: TrainingJob, architecture: Architecture) -> Iterator[Beyond]:
    if (
        not job.precision.startswith("amp")
        or not frozen_base(architecture, job.base_quantization, 4).packed_bytes
    ):
        return
    if not architecture.extra.get("experts"):
        wide = 3 if architecture.extra.get("gated") else 1
        yield Beyond(
            "packed layers answer in fp32",
            2 * wide * architecture.intermediate_size,
            "bitsandbytes returns the dtype of the input, and what a norm hands on is fp32 under autocast",
        )


def inputs_of_int8_layers(
    job: TrainingJob, architecture: Architecture, *, checkpointed: bool = False
) -> Beyond | None:
    """What int8 layers hold until their backward, of a ``checkpointed`` block too; None without them.

    Equation: AMP, the fp32 outputs of the block's two norms, 4 x 2 h, and the MLP's, 4 f, where ReLU has not saved
    that already. Source: bitsandbytes 0.50, MatMul8bitLt, which keeps its input as an attribute and not
    through ``save_for_backward``, so that a checkpoint's hooks never see it. Leaves out: the dtype of a 16-bit
    base, mixtures.
    """
    packed = frozen_base(architecture, job.base_quantization, 4).packed_bytes
    if job.base_quantization != "int8" or not packed or not job.precision.startswith("amp"):
        return None
    saved = architecture.extra.get("activation") == "relu" and not checkpointed
    wide = 0 if saved else 4 * architecture.intermediate_size
    return Beyond(
        "int8 layers keep their inputs",
        8 * architecture.hidden_size + wide,
        "bitsandbytes holds them outside of autograd's saved tensors, where no checkpoint drops them",
    )


def _mlp(job: TrainingJob, architecture: Architecture) -> Iterator[Beyond]:
    f, activation = architecture.intermediate_size, architecture.extra.get("activation")
    if architecture.extra.get("gated"):
        return
    if activation == "gelu_new":
        amp, fp32 = job.precision.startswith("amp"), job.precision == "fp32"
        yield Beyond(
            "gelu_new is a chain of small operations",
            f * (12 if amp or fp32 else 6),
            "pow, tanh, sums and products each save an intermediate-sized tensor"
            + (", and under autocast pow and all that follows run in fp32" if amp else ""),
        )
    elif activation == "relu":
        size = 4 if job.precision == "fp32" else 2
        yield Beyond(
            "ReLU saves only its output", -size * f, "its gradient is known from the sign of the result"
        )
    if not architecture.dropout.get("residual"):
        yield Beyond("no dropout masks", -2 * architecture.hidden_size, "this model's dropout is 0")


def saved_beyond_board(job: TrainingJob, architecture: Architecture) -> tuple[Beyond, ...]:
    """Differences between transformers' blocks and `saved_by_block`, in bytes a token and block.

    Equations, n norms of width h: AMP adds 2 n h for the fp32 residual stream, and 2 h for each further
    linear layer that reads the same norm; RMSNorm adds 4 n h (AMP 4 n h for the normalised copy); gelu_new
    adds 12 f under AMP and fp32, 6 f in bf16; a packed base under AMP adds 2 f for each tensor that the
    activation saves, 3 of a gated MLP and 1 of another, and `inputs_of_int8_layers`; no dropout takes the 2 h of
    masks away.
    Sources: transformers' modeling files and NewGELUActivation; autocast's fp32 list.
    Leaves out: mixture-of-experts routing, soft caps, rotary tables, statistics of norms.
    Known error: with it GPT-2 under AMP saves 84 h (measured slope 83.9) and Llama 3.2 1B 63 h (measured
    63.7).
    """
    beyond = [
        *_norms(job, architecture),
        *_linear_inputs(job, architecture),
        *_packed_layers(job, architecture),
        *_mlp(job, architecture),
    ]
    inputs = inputs_of_int8_layers(job, architecture)
    if inputs is not None:
        beyond.append(inputs)
    if _math_kernel(job, architecture):
        wider = (architecture.heads - architecture.kv_heads) * architecture.head_dim
        beyond.append(
            Beyond("keys and values repeated for every head", 8 * wider, "the math kernel expands them")
        )
    elif job.attention == "sdpa":
        beyond.append(
            Beyond(
                "log-sum-exp",
                4 * architecture.heads,
                "fused attention keeps one fp32 number a head and token",
            )
        )
    return tuple(beyond)


def _math_kernel(job: TrainingJob, architecture: Architecture) -> bool:
    # no fused kernel takes grouped fp32 heads (torch 2.11 on an H200)
    return job.attention == "sdpa" and job.precision == "fp32" and architecture.kv_heads < architecture.heads


def scores_beyond_board(job: TrainingJob, architecture: Architecture) -> int:
    """Bytes a score that attention keeps beyond the board's count: 5 when eager (9 in fp32), 0 when fused.

    Equation: the softmax in the dtype it runs in, its 16-bit copy or (with dropout) the mask and the
    dropped-out copy. Source: transformers' eager attention functions; autocast runs softmax in fp32; fused
    attention in fp32 with grouped heads falls back to the math kernel, which keeps its softmax.
    """
    if job.attention == "sdpa":
        return 4 if _math_kernel(job, architecture) else 0
    if job.precision == "fp32":
        return 0 if architecture.dropout.get("attention") else -5
    softmax_in_fp32 = job.precision.startswith("amp") or architecture.extra.get("norm") == "rms_norm"
    kept = 4 if softmax_in_fp32 else 2
    if architecture.dropout.get("attention"):
        return kept + 1 + 2 - 5
    return kept + (2 if softmax_in_fp32 else 0) - 5
