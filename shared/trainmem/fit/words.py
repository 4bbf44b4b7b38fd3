"""How counts of parameters, prices and borders are written, the same in the terminal and on the page."""

from __future__ import annotations

from trainmem.fit.frontier import MethodFit, WhatFits
from trainmem.fit.methods import Kind
from trainmem.levers import Mathematics

__all__ = ["billions", "in_short", "mathematics_in_words", "step_time"]

_NAMES: dict[Kind, str] = {"full": "full fine-tuning", "lora": "LoRA", "qlora": "QLoRA"}


def billions(parameters: int) -> str:
    """``"11.5B"``, three significant digits; ``"774M"`` below a billion."""
    if parameters < 10**9:
        return f"{parameters / 10**6:.3g}M"
    return f"{parameters / 10**9:.3g}B"


def step_time(share: float) -> str:
    """``"+25% step time"``."""
    rounded = round(100 * share)
    return "same step time" if rounded == 0 else f"{rounded:+d}% step time"


def mathematics_in_words(kind: Mathematics) -> str:
    """``"identical mathematics"``, or what the lever changes."""
    return "identical mathematics" if kind == "identical" else kind


def in_short(page: WhatFits) -> str:
    """One sentence: how large each kind of training gets along the curve, by the best and the plainest recipe."""
    parts = []
    for kind, name in _NAMES.items():
        rows = [row for row in page.rows if row.method.kind == kind]
        sizes = sorted({_parameters(row) for row in rows})
        if not sizes[-1]:
            parts.append(f"no {name} at all")
        elif len(sizes) == 1:
            parts.append(f"{name} to {billions(sizes[0])}")
        else:
            least = billions(sizes[0]) if sizes[0] else "nothing"
            parts.append(f"{name} to {least} or {billions(sizes[-1])}, by recipe")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def _parameters(row: MethodFit) -> int:
    return row.curve.largest.parameters if row.curve.largest else 0
