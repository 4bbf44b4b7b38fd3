"""Scripts whose libraries launch kernels of Triton, which is not installed here and is not needed."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from trainmem_backend.trace.program import trace_script

pytestmark = pytest.mark.torch

SCRIPT = """
import torch
from triton.runtime.jit import JITFunction
weight = torch.nn.Linear(256, 256, device="cuda")
optimizer = torch.optim.SGD(weight.parameters())
result = weight(torch.ones(4, 256, device="cuda"))
JITFunction().run(result, grid=(1,), warmup=False)
result.sum().backward()
optimizer.step()
"""


class JITFunction:
    def run(self, *args: object, **kwargs: object) -> None:
        raise AssertionError("libcuda.so cannot found!")


def test_a_launch_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # this module alone: torch would ask more of a package that it finds
    module = ModuleType("triton.runtime.jit")
    module.__dict__["JITFunction"] = JITFunction
    monkeypatch.setitem(sys.modules, module.__name__, module)
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    recording = trace_script(path, [], steps=1)
    assert [note for note in recording.notes if note.startswith("Triton: no kernel ran")]
    with pytest.raises(AssertionError, match="libcuda"):
        JITFunction().run()
