"""The scores over the vocabulary: small beside a large model, the largest thing beside a small one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from trainmem.job import ACTIVATION_DTYPE_BYTES, TrainingJob
from trainmem.model.architecture import Architecture
from trainmem.whiteboard.term import Term, share_term

__all__ = [
    "BYTES_PER_LOGIT",
    "LOGIT_RANGE",
    "liger_chunk_rows",
    "liger_logits_bytes",
    "logit_terms",
    "logits_bytes",
]

BYTES_PER_LOGIT = 10
"""2 for the 16-bit scores, 4 for their fp32 copy, 4 for its gradient."""
LOGIT_RANGE: tuple[Literal[8], Literal[12]] = (8, 12)
"""Least and most bytes a logit, by how many fp32 tensors are alive together."""


def logits_bytes(tokens: int, vocab_size: int, *, bytes_per_logit: int = BYTES_PER_LOGIT) -> int:
    """Bytes of logits and loss at the start of backward.

    Equation: tokens x V x 10 B, between 8 and 12.
    Source: transformers' causal language model loss, which takes the log-softmax in fp32.
    Known error: on an H200 with torch 2.11 it is 12 at the start of backward: the fp32 log-probabilities,
    their gradient and the gradient of the scores.
    """
    return tokens * vocab_size * bytes_per_logit


def liger_chunk_rows(tokens: int, vocab_size: int, hidden_size: int) -> int:
    """Rows of logits that Liger's fused linear cross entropy holds at a time.

    Equation: the power of two at or above tokens / ceil(V / h).
    Source: liger_kernel/ops/fused_linear_cross_entropy.py.
    """
    rows = -(-tokens // -(-vocab_size // hidden_size))
    return 1 << max(0, rows - 1).bit_length()


def liger_logits_bytes(tokens: int, vocab_size: int, hidden_size: int, element_bytes: int) -> int:
    """Bytes of the fused loss: one chunk of logits, and the gradient of its input.

    Equation: chunk x V x e + tokens x h x e, with e the bytes of an element of the matrix product.
    Source: liger_kernel/ops/fused_linear_cross_entropy.py.
    Leaves out: the head's weight gradient, which it makes in the forward and which counts as a gradient.
    """
    chunk = liger_chunk_rows(tokens, vocab_size, hidden_size)
    return chunk * vocab_size * element_bytes + tokens * hidden_size * element_bytes


def logit_terms(job: TrainingJob, architecture: Architecture) -> Iterator[Term]:
    """Logits and loss of one micro batch on the rank that has the head; classifiers score a sequence once."""
    b, s, v, h = job.micro_batch, job.sequence_length, architecture.vocab_size, architecture.hidden_size
    if job.task != "causal_lm":
        labels = max((p.shape[0] for p in architecture.head if p.name.endswith("weight")), default=2)
        size = logits_bytes(b, labels)
        numbers = f"{b:,} × {labels} × {BYTES_PER_LOGIT} B"
        name, equation, source = "logits and loss", "b × labels × 10 B", "transformers' loss functions"
    elif job.loss == "liger_fused":
        element = ACTIVATION_DTYPE_BYTES[job.precision]
        rows = liger_chunk_rows(b * s, v, h)
        size = liger_logits_bytes(b * s, v, h, element)
        name = "one chunk of logits and the gradient of its input"
        equation = f"chunk × V × {element} B + s b h × {element} B"
        numbers = f"{rows:,} × {v:,} × {element} B + {s:,} × {b:,} × {h:,} × {element} B"
        source = "liger_kernel/ops/fused_linear_cross_entropy.py"
    else:
        size = logits_bytes(b * s, v)
        name = f"logits and loss ({LOGIT_RANGE[0]} to {LOGIT_RANGE[1]} B each)"
        equation = f"s b V × {BYTES_PER_LOGIT} B"
        numbers = f"{s:,} × {b:,} × {v:,} × {BYTES_PER_LOGIT} B"
        source = "transformers/loss/loss_utils.py"
    yield share_term(
        "logits", name, equation, numbers, size, job.sharding.tensor_parallel, "approximate", source
    )
