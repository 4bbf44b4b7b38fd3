"""What breaks when one line is wrong: memory that explodes, losses that stall, references that pile up."""

from __future__ import annotations

from trainmem.job import TrainingJob
from trainmem.model.catalogue import find
from trainmem_backend.measure.trial import Pass, Trial

__all__ = ["trials"]

_SMALL = TrainingJob(model="gpt2-124m", micro_batch=4, sequence_length=512)
_LONG = TrainingJob(
    model="gpt2-124m",
    config={**find("gpt2-124m").config, "n_positions": 4096},
    micro_batch=4,
    sequence_length=4096,
)


def _loop(label: str, job: TrainingJob, loop: str, steps: int, learning_rate: float | None = None) -> Trial:
    options = {"loop": loop, "steps": steps, "learning_rate": learning_rate}
    return Trial(suite="break-it", label=label, job=job, kind="curve", passes=(), options=options)


def trials() -> list[Trial]:
    """Each mistake beside the same run without it."""
    step: tuple[Pass, ...] = ("memory", "hooks")
    baseline = TrainingJob(model="gpt2-774m", micro_batch=8, sequence_length=1024)
    return [
        Trial(suite="break-it", label="sdpa at s = 4,096", job=_LONG, passes=step),
        Trial(
            suite="break-it",
            label="eager at s = 4,096",
            job=_LONG.with_(attention="eager"),
            passes=step,
            forced=True,
        ),
        Trial(
            suite="break-it",
            label="zero_grad(set_to_none=False)",
            job=baseline.with_(zero_grad="zeros"),
            passes=("memory",),
        ),
        _loop("zero_grad each step", _SMALL, "right", 60, 1e-4),
        _loop("zero_grad forgotten", _SMALL, "without_zero_grad", 60, 1e-4),
        _loop("losses.append(loss.item())", _SMALL, "right", 50),
        _loop("losses.append(loss)", _SMALL, "losses_append_loss", 50),
        _loop("losses.append(loss) without no_grad", _SMALL, "evaluation_without_no_grad", 20),
        *(
            _loop(f"lr 1e-5 in {name}", _SMALL.with_(precision=precision), "right", 100, 1e-5)
            for name, precision in (
                ("fp32", "fp32"),
                ("AMP bf16", "amp_bf16"),
                ("pure bf16", "bf16"),
                ("pure bf16 with Kahan", "bf16_kahan"),
                ("pure bf16, stochastic rounding", "bf16_stochastic"),
            )
        ),
    ]
