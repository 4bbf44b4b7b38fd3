"""The sum on one card: what to know before the first question."""

from __future__ import annotations

from dataclasses import dataclass

from trainmem.job import Precision, TrainingJob
from trainmem.model.resolve import resolve
from trainmem.whiteboard.activations import layer_coefficient, saved_by_block
from trainmem.whiteboard.logits import BYTES_PER_LOGIT
from trainmem.whiteboard.states import RECIPES, recipe_sum
from trainmem.whiteboard.term import factor

__all__ = ["LETTERS", "CardLine", "card"]

LETTERS = "P parameters, b sequences of s tokens, h hidden size, a heads, L blocks, V vocabulary, r LoRA's rank, N GPUs"


@dataclass(frozen=True, slots=True)
class CardLine:
    """One line of the card: what it is the size of, the equation, and when to think of it."""

    name: str
    equation: str
    note: str


def card() -> tuple[CardLine, ...]:
    """The lines in the order in which one says the sum, in `LETTERS`.

    Coefficients come from the formulas that the keys are computed with.
    """
    adapters = RECIPES["fp32"]
    each = adapters.weight_bytes + adapters.gradient_bytes + 2 * adapters.state_bytes
    return (
        _recipe("fp32", "fp32, AdamW"),
        _recipe("amp_bf16", "autocast, AdamW"),
        _recipe("bf16_master", "bf16 with fp32 master weights"),
        _recipe("bf16", "pure bf16, AdamW"),
        CardLine(
            "adapters (LoRA)",
            f"Σ r (inputs + outputs) × {each} B + P × 2 B",
            "the frozen bf16 base has no gradients and no moments",
        ),
        CardLine(
            "a block's activations",
            f"{_coefficient('gpt2-774m')} s b h (GPT), {_coefficient('llama2-7b', 'bf16')} s b h (Llama 2 7B)",
            "in 16 bit, with fused attention; eager attention adds 5 a s² b",
        ),
        CardLine(
            "with checkpointing", "L × 2 s b h + one block", "costs one more forward: a third more arithmetic"
        ),
        CardLine("logits", f"{BYTES_PER_LOGIT} s b V B", "where the vocabulary is large they are the peak"),
        CardLine("ZeRO-1, 2, 3", "2 + 2 + 12/N, 2 + 14/N, 16/N B", "a parameter, with master weights"),
        CardLine("units", "1 GiB = 2³⁰ B = 1.074 GB", "torch counts in GiB, products are sold in GB"),
    )


def _recipe(precision: Precision, name: str) -> CardLine:
    parts = recipe_sum(precision)
    total = sum(size for _, size in parts)
    sizes = " + ".join(f"{factor(size)} ({part})" for part, size in parts)
    return CardLine(name, f"P × {factor(total)} B", sizes)


def _coefficient(model: str, precision: Precision = "amp_bf16") -> str:
    architecture = resolve(TrainingJob(model=model, precision=precision)).architecture
    return f"{layer_coefficient(saved_by_block(architecture), architecture.hidden_size):.0f}"
