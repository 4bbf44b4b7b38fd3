"""Real snapshots of small runs, one click away."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

__all__ = ["EXAMPLES", "example_path"]

EXAMPLES: dict[str, str] = {
    "amp": "GPT-2 124M, mixed precision, AdamW, three steps",
    "ckpt": "GPT-2 124M with activation checkpointing, three steps",
    "oom": "GPT-2 124M with a larger batch, under a cap of 3% of the device",
    "ring": "GPT-2 124M, of which the recording kept only the last 2,000 events",
    "annot": "GPT-2 124M, two steps with named regions, the model still there at the end",
    "expandable": "GPT-2 124M with expandable segments",
    "graph": "a small MLP captured in a CUDA graph: a private pool",
    "allstacks": "GPT-2 124M with C++ stacks as well",
}
"""What each example shows. Recorded on an H200 with torch 2.11; paths were shortened."""


def example_path(name: str) -> Path:
    """The file of an example. Raises ``ValueError`` for a name that is none."""
    if name not in EXAMPLES:
        raise ValueError(f"example: {name!r} is not one of {', '.join(EXAMPLES)}")
    return Path(str(files("trainmem.snapshot.examples").joinpath(f"{name}.pickle.gz")))
