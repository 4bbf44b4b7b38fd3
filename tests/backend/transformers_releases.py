"""What newer releases allocate otherwise than transformers 5.17 and torch 2.11, whose code the tape follows.

The trace runs the code that is installed, and is right for it. Each difference was found as events that only one of
the two has, and read in both releases' sources.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

from trainmem.job import TrainingJob
from trainmem.model import Architecture, resolve

__all__ = ["as_it_runs", "differences"]

_EXPERTS = ("mixtral", "qwen3_moe", "gpt_oss")


@dataclass(frozen=True)
class _Difference:
    since: tuple[int, int]
    what: str
    concerns: Callable[[TrainingJob, Architecture], bool]


_DIFFERENCES = (
    _Difference(
        (5, 18),
        "only experts that are divided over devices mask rows (integrations/moe.py)",
        lambda job, model: model.family in _EXPERTS,
    ),
    _Difference(
        (5, 18),
        "OPT hands on no mask of ones, so that nobody looks whether all of it is true (modeling_opt.py)",
        lambda job, model: model.family == "opt",
    ),
    _Difference(
        (5, 19),
        "rotary angles are an outer product number by number; as a matrix product they made the step's first "
        "cuBLAS workspace, which the first layer makes now",
        lambda job, model: bool(model.extra.get("rotary_dim")),
    ),
    _Difference(
        (5, 21),
        "Gemma 2 has no sdpa (_supports_sdpa in modeling_gemma2.py)",
        lambda job, model: model.family == "gemma2" and job.attention == "sdpa",
    ),
    _Difference(
        (5, 23),
        "a checkpointed block is run again inside FSDP's hooks, which before were run again with it "
        "(modeling_layers.py)",
        lambda job, model: job.sharding.mode == "fsdp2" and job.checkpointing != "none",
    ),
)

_OF_TORCH = _Difference(
    (2, 12),
    "a function written in Python lets go of its gradients before the engine casts what it answers "
    "(PyNode::apply in python_function.cpp)",
    lambda job, model: job.precision == "amp_fp16" and job.base_quantization == "nf4",
)


def _installed(package: str = "transformers") -> tuple[int, int]:
    major, minor = metadata.version(package).split(".")[:2]
    return int(major), int(minor)


def differences(job: TrainingJob, release: tuple[int, int] | None = None) -> list[str]:
    """Why the events of ``job`` are others than the tape's under ``release``, by default the installed one."""
    architecture = resolve(job).architecture
    found = [each for each in _DIFFERENCES if each.since <= (release or _installed())]
    said = [
        f"transformers {each.since[0]}.{each.since[1]}: {each.what}"
        for each in found
        if each.concerns(job, architecture)
    ]
    if _installed("torch") >= _OF_TORCH.since and _OF_TORCH.concerns(job, architecture):
        said.append(f"torch: {_OF_TORCH.what}")
    return said


def as_it_runs(job: TrainingJob, release: tuple[int, int] | None = None) -> TrainingJob:
    """The job that the tape replays for ``job``: from 5.21 on Gemma 2 runs with eager attention."""
    eager = (release or _installed()) >= (5, 21) and resolve(job).architecture.family == "gemma2"
    return job.with_(attention="eager") if eager else job
