"""The machine itself: memory, context, workspaces, bandwidth, arithmetic, and which features really run."""

from __future__ import annotations

from trainmem_backend.measure.trial import Trial

__all__ = ["FEATURES", "trials"]

FEATURES = (
    "sdpa",
    "sdpa-flash",
    "sdpa-memory-efficient",
    "sdpa-cudnn",
    "sdpa-math",
    "bitsandbytes",
    "triton",
    "liger",
)


def trials() -> list[Trial]:
    """One trial for the machine, one for each feature: a feature that crashes takes only its own process
    along."""
    return [
        Trial(suite="machine", label="machine", kind="machine", passes=()),
        *(
            Trial(suite="machine", label=name, kind="preflight", passes=(), options={"feature": name})
            for name in FEATURES
        ),
    ]
