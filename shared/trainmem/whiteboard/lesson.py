"""The answer people give from memory: how large a model trains on a machine, by method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainmem.units import GIB, format_gib
from trainmem.whiteboard.adapters import NF4_BYTES_PER_PARAMETER
from trainmem.whiteboard.states import RECIPES, bytes_per_parameter
from trainmem.whiteboard.term import factor

__all__ = ["SPARK_USABLE_BYTES", "LessonLimit", "Method", "lesson_limits"]

Method = Literal["full", "lora", "qlora"]

SPARK_USABLE_BYTES = 118 * GIB
"""What the textbook sum assumes of a DGX Spark once the operating system has its share."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LessonLimit:
    """One method's rule of thumb: the sum that bounds it, and the size people name.

    ``ceiling_parameters`` would fill the memory with state alone; ``low_parameters`` and ``high_parameters``
    leave a share of it for activations, logits and temporaries.
    """

    method: Method
    name: str
    state_bytes_per_parameter: float
    ceiling_parameters: float
    low_parameters: float
    high_parameters: float
    substituted: str
    answer: str
    why: str


# shares left for everything but state: least and most
_ROOM: dict[Method, tuple[float, float]] = {"full": (0.10, 0.10), "lora": (0.20, 0.35), "qlora": (0.70, 0.70)}
_NAMES: dict[Method, str] = {
    "full": "full fine-tuning",
    "lora": "LoRA on a 16-bit base",
    "qlora": "QLoRA, NF4 base",
}
_WHY: dict[Method, str] = {
    "full": "a tenth is kept for activations, which suffices when blocks are checkpointed",
    "lora": "a fifth to a third is kept for activations, which are saved although the base is frozen",
    "qlora": "seven tenths are kept: activations, adapters' fp32 inputs and unpacked weights are not packed",
}


def lesson_limits(usable_bytes: int = SPARK_USABLE_BYTES) -> tuple[LessonLimit, ...]:
    """About 7B, 40 to 50B and 70B on a DGX Spark: the largest model by full fine-tuning, LoRA and QLoRA.

    Equation: usable bytes x (1 - room) / bytes of state a parameter: 16 for full fine-tuning, 2 for a frozen
    16-bit base, 0.515869 for NF4; room is 10%, 20 to 35% and 70%.
    Source: the bytes are `bytes_per_parameter` and QLoRA's; the room is a rule of thumb, assumed.
    Known error: it knows neither micro batch nor sequence length nor recipe. A measured 7B under AMP AdamW
    with checkpointing needs 125.6 GiB and does not fit in 118; with 8-bit state or pure bf16 it does.
    """
    each: dict[Method, float] = {
        "full": bytes_per_parameter("fp32"),
        "lora": RECIPES["bf16"].weight_bytes,
        "qlora": NF4_BYTES_PER_PARAMETER,
    }
    limits: list[LessonLimit] = []
    for method, state in each.items():
        least, most = _ROOM[method]
        ceiling = usable_bytes / state
        sum_ = f"{format_gib(usable_bytes)} / {factor(state)} B = {ceiling / 1e9:,.1f}B parameters"
        low, high = ceiling * (1 - most), ceiling * (1 - least)
        limits.append(
            LessonLimit(
                method=method,
                name=_NAMES[method],
                state_bytes_per_parameter=state,
                ceiling_parameters=ceiling,
                low_parameters=low,
                high_parameters=high,
                substituted=sum_,
                answer=_answer(low, high),
                why=_WHY[method],
            )
        )
    return tuple(limits)


def _answer(low: float, high: float) -> str:
    step = 1e9 if high < 2e10 else 1e10
    small, large = (max(1, int(n / step)) * step / 1e9 for n in (low, high))
    if high < 1e9:
        return f"about {high / 1e9:.1f}B"
    return f"about {large:.0f}B" if small == large else f"{small:.0f} to {large:.0f}B"
