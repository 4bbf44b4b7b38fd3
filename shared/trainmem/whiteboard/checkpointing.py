"""How many blocks' activations are alive when some of them are recomputed in the backward pass."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, isqrt

from trainmem.job import Checkpointing

__all__ = ["Alive", "alive_layers", "sqrt_segment"]


@dataclass(frozen=True, slots=True)
class Alive:
    """At the worst instant: block inputs kept as checkpoints, whole blocks' activations, blocks' scores."""

    checkpoints: int
    whole_layers: int
    score_layers: int


def sqrt_segment(layers: int) -> int:
    """Blocks in one segment when checkpoints lie about every sqrt(L) blocks."""
    root = isqrt(layers)
    return root if root * root == layers else root + 1


def alive_layers(checkpointing: Checkpointing, layers: int) -> Alive:
    """What ``layers`` blocks keep under each kind of checkpointing.

    Equations: none, L blocks; full, L checkpoints of 2 s b h and one block recomputed; sqrt, one checkpoint
    every k = ceil(sqrt L) blocks and k blocks recomputed; selective, L blocks without their scores, one
    block's scores recomputed.
    Sources: Chen et al. 2016 for sqrt(L); Korthikanti et al. 2022, section 5, for selective.
    Known error: under autocast the residual stream is fp32, so a checkpoint is 4 s b h.
    """
    if checkpointing == "full":
        return Alive(layers, min(1, layers), min(1, layers))
    if checkpointing == "sqrt":
        segment = sqrt_segment(layers)
        return Alive(ceil(layers / segment) if segment else 0, segment, segment)
    if checkpointing == "selective":
        return Alive(0, layers, min(1, layers))
    return Alive(0, layers, layers)
