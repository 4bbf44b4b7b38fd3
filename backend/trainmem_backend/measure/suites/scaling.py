"""How memory grows with length and with size, with the saved tensors counted by hooks."""

from __future__ import annotations

from trainmem.job import TrainingJob
from trainmem_backend.measure.trial import Trial

__all__ = ["trials"]

_LENGTHS = (512, 1024, 2048)
_SIZES = ("gpt2-124m", "gpt2-355m", "gpt2-774m", "gpt2-1558m")


def trials() -> list[Trial]:
    """Lengths in sdpa and eager for GPT-2 774M, then the four sizes at 1,024 tokens; micro batch 4."""
    found = []
    for attention in ("sdpa", "eager"):
        for length in _LENGTHS:
            job = TrainingJob.from_json(
                {
                    "model": "gpt2-774m",
                    "micro_batch": 4,
                    "sequence_length": length,
                    "attention": attention,
                    # The published table of positions ends at 1,024; a longer one keeps all else the same.
                    "config": _longer("gpt2-774m", max(_LENGTHS)),
                }
            )
            found.append(_trial(f"{attention}, s = {length:,}", job))
    for name in _SIZES:
        job = TrainingJob(model=name, micro_batch=4, sequence_length=1024)
        found.append(_trial(name, job))
    return found


def _trial(label: str, job: TrainingJob) -> Trial:
    return Trial(suite="scaling", label=label, job=job, passes=("memory", "hooks", "timing"))


def _longer(model: str, positions: int) -> dict[str, object]:
    from trainmem.model.catalogue import find

    return {**find(model).config, "n_positions": positions}
