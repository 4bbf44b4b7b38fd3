"""What scripts do around a training step: closures, ways to name the device, checks of values, ways to end."""

from pathlib import Path

import pytest

from trainmem.recording import Recording
from trainmem_backend.trace.program import trace_script

STEP = (
    "for _ in range(3):\n"
    "    model(torch.ones(4, 256, device='cuda')).sum().backward()\n"
    "    optimizer.step()\n"
    "    optimizer.zero_grad()\n"
)


def traced(folder: Path, body: str, *, steps: int = 2) -> Recording:
    path = folder / "train.py"
    path.write_text("import sys\nimport torch\n" + body, encoding="utf-8")
    return trace_script(path, [], steps=steps)


def phases(recording: Recording, step: int) -> list[tuple[str, int]]:
    return [(mark.phase, mark.micro) for mark in recording.marks if mark.step == step]


@pytest.mark.parametrize("call", ["optimizer.step(closure)", "optimizer.step(closure=closure)"])
def test_a_closure_is_forward_and_backward_of_the_step(tmp_path: Path, call: str) -> None:
    recording = traced(
        tmp_path,
        "model = torch.nn.Linear(256, 256).cuda()\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "def closure():\n"
        "    optimizer.zero_grad()\n"
        "    loss = model(torch.ones(4, 256, device='cuda')).sum()\n"
        "    loss.backward()\n"
        "    return loss\n"
        f"for _ in range(9):\n    {call}\n",
    )
    for step in (1, 2):
        assert phases(recording, step) == [
            ("forward", 0),
            ("backward", 0),
            ("optimizer", 0),
            ("zero_grad", 0),
        ]


def test_a_closure_called_again_is_a_micro_batch_of_the_same_step(tmp_path: Path) -> None:
    recording = traced(
        tmp_path,
        "model = torch.nn.Linear(256, 1).cuda()\n"
        "optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, max_eval=3, tolerance_change=0)\n"
        "def closure():\n"
        "    optimizer.zero_grad()\n"
        "    loss = model(torch.ones(4, 256, device='cuda')).sum()\n"
        "    loss.backward()\n"
        "    return loss\n"
        "for _ in range(2):\n    optimizer.step(closure)\n",
    )
    for step in (1, 2):
        found = phases(recording, step)
        assert found[:5] == [
            ("forward", 0),
            ("backward", 0),
            ("optimizer", 0),
            ("forward", 1),
            ("backward", 1),
        ]
