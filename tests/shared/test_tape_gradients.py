"""One run tells both what a step does that makes its gradients and what one does that adds to them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from trainmem.job import Lora, Sharding, TrainingJob
from trainmem.model import resolve
from trainmem.tape import program
from trainmem.tape.core import Tape
from trainmem.tape.engine import run_backward
from trainmem.tape.program import Program, compiled
from trainmem.tape.structure import structure_of
from trainmem.tape.tensor import BUCKET, Gradients

_LEVERS: tuple[dict[str, Any], ...] = (
    {},
    {"precision": "bf16", "checkpointing": "full", "accumulation": 2},
    {"checkpointing": "sqrt", "loss": "liger_fused"},
    {"precision": "bf16", "attention": "eager", "lora": Lora()},
    {"precision": "bf16_master_fp32_grads"},
    {"precision": "fsdp_mp_bf16", "sharding": Sharding(mode="fsdp2", data_parallel=2)},
    {"precision": "bf16", "sharding": Sharding(mode="fsdp2", data_parallel=1)},
)


def _columns(found: Program) -> list[Any]:
    parts = [(part.label, part.events, part.keys) for part in found.parts]
    return [parts, *(getattr(found, each.name) for each in fields(found) if each.name != "parts")]


@pytest.mark.parametrize("model", ["llama3.2-1b", "gpt2-124m", "gemma3-1b", "qwen2.5-0.5b", "mixtral-8x7b"])
@pytest.mark.parametrize("levers", _LEVERS, ids=lambda levers: "-".join(map(str, levers)) or "none")
def test_gradients_that_exist_need_no_run_of_their_own(model: str, levers: dict[str, Any]) -> None:
    job = TrainingJob(model=model, **levers)
    architecture = resolve(job).architecture
    first, later = (
        compiled(structure_of(job, architecture)),
        structure_of(job, architecture, accumulating=True),
    )
    assert _columns(compiled(later)) == _columns(program._run(later)[0])
    kept = set(first.gradients.values())
    assert kept
    assert all(first.bucket_of[key] == BUCKET["gradients"] for key in kept)
    assert not any(~key in part.events for part in first.parts for key in kept)
    assert not compiled(later).gradients


@pytest.mark.parametrize("accumulating", [False, True])
def test_a_gradient_that_a_parameter_keeps_is_not_summed_into(accumulating: bool) -> None:
    """One tensor is the gradient of a parameter and the first of two gradients of an activation."""
    tape = Tape()
    tape.accumulating = accumulating

    def passed(tape: Tape, grads: Gradients, needs: object) -> Gradients:
        return [grads[0].alias() for _ in range(2)]

    def made(tape: Tape, grads: Gradients, needs: object) -> Gradients:
        return [tape.alloc((), 4, "made")]

    def split(tape: Tape, grads: Gradients, needs: object) -> Gradients:
        return [tape.alloc((), 4, "first"), tape.alloc((), 4, "second")]

    parameter = tape.parameter("weight", (), 4)
    shared = tape.op("input", [tape.parameter("other", (), 4)], (), 4, made)
    other = tape.op("other", [shared], (), 4, made)
    both = tape.op("both", [parameter, shared], (), 4, passed)
    loss = tape.op("loss", [both, other], (), 4, split)
    del both, other, shared
    run_backward(tape, loss, tape.alloc((), 4, "gradient of the loss"))
    assert tape.kept_owns is not accumulating
    assert any(op == "sum of gradients" for *_, op in tape.made) is not accumulating
