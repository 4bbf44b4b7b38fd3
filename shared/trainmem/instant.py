"""The instant of the peak in words."""

from __future__ import annotations

import re

__all__ = ["describe_instant", "short_op"]

_BLOCK = re.compile(r"^layers\.\d+(?:\.|: )?")

_PHRASES: tuple[tuple[str, str, str], ...] = (
    ("backward", "nll_loss backward", "start of backward, when the gradient of the logits joins everything saved"),
    ("backward", "log_softmax backward", "start of backward, when the gradient of the logits joins everything saved"),
    ("backward", "lm_head", "start of backward at the output head, with everything still saved"),
    ("backward", "loss: cast backward", "start of backward, when the 16-bit logits gradient joins everything saved"),
    ("forward", "log_softmax", "end of forward, when the loss's fp32 scores join everything saved"),
    ("forward", "loss", "end of forward, when the fp32 logits join everything saved"),
    ("forward", "lm_head", "end of forward, when the logits join everything saved"),
    ("forward", "nll_loss", "end of forward, at the loss"),
    ("optimizer", "foreach sqrt", "optimizer step, when AdamW's square roots join gradients and state"),
    ("optimizer", "adamw", "optimizer step, when AdamW's square roots join gradients and state"),
)  # fmt: skip


def short_op(op: str) -> str:
    """An operation without the number of the block that stood for it."""
    return _BLOCK.sub("", op)


def describe_instant(phase: str, op: str, module: str, optimizer: str = "") -> str:
    """One phrase that names the instant: the phase, the block and the operation."""
    block, inside = _block_and_inside(module)
    for at, part, phrase in _PHRASES:
        # a loss that a model computes itself runs in no block
        if at == phase and part in op and (phase == "optimizer" or block == module):
            return phrase
    name = short_op(op)
    if phase == "optimizer":
        return f"optimizer step ({optimizer or name}), with every gradient and state alive"
    where = "forward" if phase == "forward" else "backward"
    if block:
        where += f" of {block}"
    at = ": ".join(part for part in (inside, name) if part)
    return f"{where}, at {at}" if at else where


def _block_and_inside(module: str) -> tuple[str, str]:
    """The outermost numbered block of a module's path and what follows in it; the whole path where none has a number.

    Nothing for the model itself, whose path is empty.
    """
    parts = module.split(".")
    at = next((place for place, part in enumerate(parts) if part.isdecimal()), None)
    if at is None:
        return module, ""
    return f"block {parts[at]}", ".".join(parts[at + 1 :])
