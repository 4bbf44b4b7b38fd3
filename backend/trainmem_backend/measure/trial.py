"""`Trial`: one thing to measure, in a process of its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from trainmem.job import TrainingJob
from trainmem.model.catalogue import find
from trainmem.results import Kind

__all__ = ["Pass", "Trial"]

Pass = Literal["memory", "hooks", "timing"]
"""What a step trial does, each apart from the others: reads the counters at phase boundaries; counts saved
tensors and sees which kernels ran; takes times with nothing else in the way."""

_MODULES = {"bitsandbytes": "bitsandbytes", "liger": "liger_kernel.transformers"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One row to be: a suite's name and label for it, the job, and how to measure it.

    ``options`` are read by the task that measures this ``kind``. ``ranks`` above 1 are real processes, one a
    GPU. ``forced`` runs a job although it is predicted over the cap, for rows that show a real failure.
    """

    suite: str
    label: str
    job: TrainingJob | None = None
    kind: Kind = "step"
    passes: tuple[Pass, ...] = ("memory", "timing")
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    ranks: int = 1
    forced: bool = False
    untimed_because: str | None = None

    def __post_init__(self) -> None:
        # A row must be readable without the catalogue of the version that measured it.
        if self.job is not None and self.job.config is None and self.job.model is not None:
            object.__setattr__(self, "job", self.job.with_(config=dict(find(self.job.model).config)))

    @property
    def key(self) -> str:
        """Names this trial in the journal; a changed job is another trial, on whatever device."""
        job = self.job.to_json() | {"device": None} if self.job else None
        what = [self.kind, job, dict(self.options), self.ranks]
        digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:8]
        return f"{self.suite}/{self.label}@{digest}"

    @property
    def needs(self) -> tuple[str, ...]:
        """Features that must have passed their preflight."""
        job = self.job
        if job is None:
            return ()
        found = []
        if "8bit" in job.optimizer or job.base_quantization != "none":
            found.append("bitsandbytes")
        if job.loss == "liger_fused":
            found.append("liger")
        return tuple(found)

    @property
    def libraries(self) -> tuple[str, ...]:
        """What its step imports beside torch and transformers."""
        adapters = ("peft",) if self.job is not None and self.job.lora is not None else ()
        return adapters + tuple(_MODULES[feature] for feature in self.needs)

    @property
    def timed(self) -> bool:
        """Whether its times count, so that nothing may run beside it."""
        return "timing" in self.passes or self.kind in ("machine", "largest_batch")

    def on(self, device: str | None) -> Trial:
        """The trial for the device it will run on, whose kernels the prediction must know; None leaves it."""
        if device is None or self.job is None:
            return self
        return replace(self, job=self.job.with_(device=device))

    def untimed(self, why: str) -> Trial:
        """The trial without its timing pass; its row says why there are no times."""
        if "timing" not in self.passes:
            return self
        passes = tuple(name for name in self.passes if name != "timing")
        return replace(self, passes=passes, untimed_because=why)

    def with_(self, **changes: Any) -> Trial:
        """The same trial with some fields changed."""
        return replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """For the worker's standard input."""
        return {
            "suite": self.suite,
            "label": self.label,
            "job": self.job.to_json() if self.job else None,
            "kind": self.kind,
            "passes": list(self.passes),
            "options": dict(self.options),
            "ranks": self.ranks,
            "forced": self.forced,
            "untimed_because": self.untimed_because,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Trial:
        """The inverse of `to_json`."""
        values = dict(data)
        values["job"] = TrainingJob.from_json(data["job"]) if data["job"] is not None else None
        values["passes"] = tuple(data["passes"])
        return cls(**values)
