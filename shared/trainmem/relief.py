"""Which levers the largest buckets of a peak ask for, where there is no job to try them on, such as a script's."""

from __future__ import annotations

from trainmem.buckets import Bucket
from trainmem.levers import LEVERS_BY_COST
from trainmem.recording import Recording, StepFigures
from trainmem.units import format_gib

__all__ = ["relief_note"]

_RELIEVE: dict[Bucket, tuple[str, ...]] = {
    "weights": ("precision", "qlora"),
    "master_weights": ("precision", "lora"),
    "gradients": ("precision", "lora"),
    "optimizer_state": ("optimizer_8bit", "lora"),
    "cast_cache": ("precision",),
    "activations": ("micro_batch", "checkpointing"),
    "logits": ("micro_batch", "loss"),
    "temporaries": ("micro_batch",),
}
"""Keys of `trainmem.levers`, by what they make smaller."""
_LARGEST = 3
_SHARE = 0.1


def relief_note(recording: Recording, steady: StepFigures) -> str | None:
    """One sentence: what fills most of the peak, and the levers that make it smaller, cheapest first.

    Left out are levers that the bytes themselves say have been pulled. None where no lever is left.
    """
    sizes = steady.buckets_at_peak
    largest = sorted((name for name in _RELIEVE if sizes.get(name)), key=lambda name: -sizes[name])[:_LARGEST]
    named = [name for name in largest if sizes[name] >= _SHARE * steady.peak_allocated_bytes]
    pulled = _pulled(recording, sizes)
    keys = {key for name in named for key in _RELIEVE[name]} - pulled
    levers = [lever.name for lever in LEVERS_BY_COST if lever.key in keys]
    if not levers:
        return None
    fill = ", ".join(f"{name} {format_gib(sizes[name])}" for name in named)
    return (
        f"most of the peak is {fill}; what makes that smaller, cheapest first: {', '.join(levers)} "
        "(docs/levers.md says what each costs)"
    )


def _pulled(recording: Recording, sizes: dict[Bucket, int]) -> set[str]:
    """Levers after which weights and state would take the bytes that they take."""
    trained, weights = recording.trainable_parameters, sizes.get("weights", 0)
    found = set()
    if sizes.get("optimizer_state", 0) < 4 * trained:
        found.add("optimizer_8bit")
    if weights < 4 * recording.parameters and not sizes.get("master_weights"):
        found.add("precision")
    if 2 * trained < recording.parameters:
        found.add("lora")
    if weights < 2 * recording.parameters:
        found.add("qlora")
    return found
