"""Checkpoints around a traced script: what it saves is not written, what it loads arrives where it should."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from trainmem.recording import Recording, counters, read_step
from trainmem_backend.trace.program import trace_script

pytestmark = pytest.mark.torch

START = "import torch\nmodel = torch.nn.Linear(512, 512)\n"
LOOP = (
    "for _ in range(3):\n"
    "    model(torch.ones(4, 512, device='cuda')).sum().backward()\n"
    "    optimizer.step()\n    optimizer.zero_grad()\n"
)
WEIGHTS = 4 * (512 * 512 + 512)


def traced(folder: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> Recording:
    monkeypatch.chdir(folder)
    path = folder / "train.py"
    path.write_text(START + body, encoding="utf-8")
    return trace_script(path, [], steps=2)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    model = torch.nn.Linear(512, 512)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(4, 512)).sum().backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "last.pt")
    return tmp_path


@pytest.mark.parametrize(
    ("map_location", "on_device"),
    [
        ("'cuda'", 3),
        ("'cuda:0'", 3),
        ("torch.device('cuda')", 3),
        ("{'cpu': 'cuda:0'}", 3),
        ("lambda storage, at: storage.cuda(0)", 3),
        ("'cpu'", 0),
        ("None", 0),
        ("lambda storage, at: storage", 0),
    ],
)
def test_a_checkpoint_is_read_to_where_it_is_mapped(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, map_location: str, on_device: int
) -> None:
    recording = traced(
        checkpoint,
        "model.cuda()\noptimizer = torch.optim.AdamW(model.parameters())\n"
        "before = torch.cuda.memory_allocated()\n"
        f"saved = torch.load('last.pt', map_location={map_location})\n"
        f"assert round((torch.cuda.memory_allocated() - before) / {WEIGHTS}) == {on_device}\n"
        "model.load_state_dict(saved['model'])\noptimizer.load_state_dict(saved['optimizer'])\n"
        f"del saved\nassert round((torch.cuda.memory_allocated() - before) / {WEIGHTS}) == 2\n{LOOP}",
        monkeypatch,
    )
    buckets = read_step(recording, counters(recording), 2).buckets_at_peak
    assert buckets["weights"] == WEIGHTS
    assert buckets["optimizer_state"] == pytest.approx(2 * WEIGHTS, rel=0.01)


@pytest.mark.parametrize(
    "save",
    [
        "torch.save(model.state_dict(), 'new.pt')\n",
        "from safetensors.torch import save_file\nsave_file(model.state_dict(), 'new.safetensors')\n",
        "from safetensors.torch import save_model\nsave_model(model, 'new.safetensors')\n",
    ],
)
def test_nothing_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save: str) -> None:
    loop = LOOP + "".join(f"    {line}\n" for line in save.splitlines())
    recording = traced(
        tmp_path, f"model.cuda()\noptimizer = torch.optim.AdamW(model.parameters())\n{loop}", monkeypatch
    )
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
    assert [note for note in recording.notes if note.endswith("wrote nothing")]
