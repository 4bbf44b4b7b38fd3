"""What one block saves for backward: 34 sbh + 5 a s² b, and its counterpart for gated blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from trainmem.job import ACTIVATION_DTYPE_BYTES, TrainingJob
from trainmem.model.architecture import Architecture
from trainmem.whiteboard.checkpointing import alive_layers
from trainmem.whiteboard.term import Term, factor, term

__all__ = [
    "GATED_RULES_OF_THUMB",
    "Saved",
    "activation_terms",
    "layer_activation_bytes",
    "layer_coefficient",
    "norms_of_width",
    "saved_by_block",
    "score_bytes",
    "scores_overtake_at_tokens",
]

GATED_RULES_OF_THUMB: tuple[tuple[int, float], ...] = ((46, 4.0), (42, 3.5))
"""The round coefficients people quote for Llama's blocks, and the intermediate size (in h) each belongs to.

They read 14 + 8 f/h, with keys and values at half the hidden size. `saved_by_block` counts 12 + 4 k/h + 8 f/h
with k the real width of keys: 45 for Llama 3.2 1B (f = 4h, k = h/4), 41 for Llama 3.1 8B (f = 3.5h, k = h/4),
37.5 for Llama 2 7B (f = 2.69h, k = h).
"""


@dataclass(frozen=True, slots=True)
class Saved:
    """A tensor that one block keeps for backward: elements a token, bytes an element.

    ``split``: tensor parallelism divides it; without sequence parallelism norms and block inputs stay whole.
    """

    what: str
    elements: int
    element_bytes: int
    split: bool

    @property
    def bytes_per_token(self) -> int:
        """Bytes for one token."""
        return self.elements * self.element_bytes


def norms_of_width(architecture: Architecture, width: int) -> int:
    """Norms of one block that normalise vectors of ``width`` elements."""
    block = architecture.blocks[architecture.layer_kinds[0]]
    return sum(1 for p in block if p.kind == "norm" and p.name.endswith("weight") and p.shape == (width,))


def saved_by_block(architecture: Architecture, element_bytes: int = 2) -> tuple[Saved, ...]:
    """What one block saves, item by item, attention scores apart.

    Equations, in bytes a token with 2-byte elements, q and k the widths of all query and all key heads:
    plain MLP: norms 2 x 2h + inputs 2h + 2h + queries 2q + keys and values 4k + context 2q + MLP 4f + dropout
    masks 2h = 34 h when q = k = h and f = 4h.
    gated MLP: the same without masks and with 8f in the MLP (gate, up, activated gate, product) =
    (12 + 4 k/h + 8 f/h) h when q = h.
    mixture of experts: each of a token's experts keeps its input, 4 intermediates and its output.
    Source: Korthikanti et al. 2022, "Reducing Activation Recomputation", section 4.1, for the plain block;
    the gated block is the same count over transformers' Llama MLP.
    Leaves out: fp32 copies that autocast and RMSNorm make, rotary tables, statistics of norms and attention.
    Known error: `trainmem.whiteboard.gap` lists what real code saves more; under AMP GPT-2 it is 84 h, not
    34 h.
    """
    h, f, e = architecture.hidden_size, architecture.intermediate_size, element_bytes
    q, k = architecture.heads * architecture.head_dim, architecture.kv_heads * architecture.head_dim
    items = [
        Saved("inputs of the norms", norms_of_width(architecture, h) * h, e, False),
        Saved("input of queries, keys and values", h, e, False),
        Saved("queries", q, e, True),
        Saved("keys and values", 2 * k, e, True),
        Saved("context, the input of the output projection", q, e, True),
    ]
    if architecture.extra.get("qk_norm"):
        items.append(Saved("inputs of the query and key norms", q + k, e, True))
    experts = int(architecture.extra.get("experts_per_token") or 0)
    if experts:
        width = int(architecture.extra.get("moe_intermediate_size") or f)
        items += [
            Saved("input of the router", h, e, False),
            Saved(f"inputs and outputs of {experts} experts", 2 * experts * h, e, True),
            Saved(f"gate, up, activated gate and product of {experts} experts", 4 * experts * width, e, True),
        ]
    else:
        items.append(Saved("input of the MLP", h, e, False))
        if architecture.extra.get("gated"):
            items.append(Saved("gate, up, activated gate and their product", 4 * f, e, True))
        else:
            items.append(Saved("before and after the activation function", 2 * f, e, True))
            items.append(Saved("two dropout masks, 1 byte each", 2 * h, 1, False))
    return tuple(items)


def layer_coefficient(items: Iterable[Saved], hidden_size: int, tensor_parallel: int = 1) -> float:
    """The c of "c s b h": bytes a token and layer over the hidden size, for one tensor parallel rank."""
    return sum(i.bytes_per_token / (tensor_parallel if i.split else 1) for i in items) / hidden_size


def layer_activation_bytes(items: Iterable[Saved], tokens: int, tensor_parallel: int = 1) -> int:
    """Bytes that one block saves for ``tokens`` tokens on one tensor parallel rank.

    Equation: s b h (10 + 24 / t) for the plain block. Source: Korthikanti et al. 2022, section 4.2.1.
    """
    return sum(tokens * i.bytes_per_token // (tensor_parallel if i.split else 1) for i in items)


def score_bytes(
    heads: int, micro_batch: int, sequence_length: int, element_bytes: int = 2, tensor_parallel: int = 1
) -> int:
    """Bytes of eager attention's score matrices in one block; fused attention keeps none of them.

    Equation: (2 + 1 + 2) a s² b: softmax, dropout mask, dropped-out softmax (9 a s² b in fp32).
    Source: Korthikanti et al. 2022, section 4.1; FlashAttention (Dao et al. 2022) for what "fused" drops.
    Known error: in 16 bits with dropout 0 transformers keeps 6 bytes (an fp32 softmax and its 16-bit copy).
    """
    return heads * micro_batch * sequence_length**2 * (2 * element_bytes + 1) // tensor_parallel


def scores_overtake_at_tokens(architecture: Architecture) -> float:
    """The sequence length at which 5 a s² b equals everything else that a block saves: s = c h / 5 a."""
    c = layer_coefficient(saved_by_block(architecture), architecture.hidden_size)
    return c * architecture.hidden_size / (5 * architecture.heads)


def activation_terms(job: TrainingJob, architecture: Architecture, in_flight: int = 1) -> Iterator[Term]:
    """Saved blocks, checkpoints and eager scores of one rank, with ``in_flight`` micro batches waiting.

    The first of p pipeline stages keeps min(p, accumulation) micro batches of its L / p blocks, the last one
    micro batch (1F1B; Narayanan et al. 2021, section 2.2). `trainmem.whiteboard.checkpointing` has the
    equations of checkpointing.
    """
    b, s, h = job.micro_batch, job.sequence_length, architecture.hidden_size
    e, t = ACTIVATION_DTYPE_BYTES[job.precision], job.sharding.tensor_parallel
    alive = alive_layers(job.checkpointing, -(-architecture.layers // job.sharding.pipeline_parallel))
    waiting = f" × {in_flight} micro batches" if in_flight > 1 else ""
    # only one micro batch recomputes at a time, however many wait
    repeats, waiting_whole = (1, "") if alive.checkpoints else (in_flight, waiting)
    if alive.checkpoints:
        yield term(
            "activations",
            "checkpoints, the inputs of blocks",
            f"checkpoints × {e} s b h",
            f"{alive.checkpoints} × {e} × {s:,} × {b:,} × {h:,} B{waiting}",
            alive.checkpoints * e * s * b * h * in_flight,
            "approximate",
            "Chen et al. 2016",
        )
    items = saved_by_block(architecture, e)
    c = factor(round(layer_coefficient(items, h, t), 3))
    gated = bool(architecture.extra.get("gated"))
    yield term(
        "activations",
        "blocks recomputed at a time" if alive.checkpoints else "blocks saved for backward",
        f"{'blocks' if alive.checkpoints else 'L'} × {c} s b h",
        f"{alive.whole_layers} × {c} × {s:,} × {b:,} × {h:,} B{waiting_whole}",
        alive.whole_layers * layer_activation_bytes(items, b * s, t) * repeats,
        "approximate",
        "counted over the gated block" if gated else "Korthikanti et al. 2022, section 4.1",
    )
    if job.attention == "eager":
        a, each = architecture.heads, factor(2 * e + 1)
        whole = job.checkpointing == "none"
        split = f" / {t}" if t > 1 else ""
        yield term(
            "activations",
            "attention scores" if whole else "attention scores recomputed at a time",
            f"{'L' if whole else 'blocks'} × {each} a s² b",
            f"{alive.score_layers} × {each} × {a} × {s:,}² × {b:,} B{waiting if whole else ''}{split}",
            alive.score_layers * score_bytes(a, b, s, e, t) * (in_flight if whole else 1),
            "approximate",
            "Korthikanti et al. 2022, section 4.1",
        )
