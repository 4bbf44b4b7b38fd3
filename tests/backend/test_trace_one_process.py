"""Libraries for several GPUs in a script that is traced as one process with one GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainmem.recording import counters, read_step
from trainmem_backend.trace.errors import TraceError
from trainmem_backend.trace.program import trace_script

pytestmark = pytest.mark.torch

LOOP = """
import torch
model = {}
optimizer = torch.optim.SGD(model.parameters())
for _ in range(3):
    model(torch.zeros(64, 256{})).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def peak_bytes(script: Path) -> int:
    recording = trace_script(script, [])
    return read_step(recording, counters(recording), 3).peak_allocated_bytes


@pytest.mark.parametrize("where", [", device='cuda'", ""], ids=["device", "host"])
def test_data_parallel_on_one_gpu_is_the_module_itself(tmp_path: Path, where: str) -> None:
    script = tmp_path / "script.py"
    layer = "torch.nn.Linear(256, 256).cuda()"
    script.write_text(LOOP.format(f"torch.nn.DataParallel({layer})", where))
    parallel = peak_bytes(script)
    script.write_text(LOOP.format(layer, ", device='cuda'"))
    assert parallel == peak_bytes(script)


def test_sharding_that_one_process_does_without_is_said(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "from accelerate import Accelerator, FullyShardedDataParallelPlugin\n"
        "accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2))\n"
        "model = torch.nn.Linear(64, 64)\n"
        "model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters()))\n"
        "for _ in range(3):\n"
        "    accelerator.backward(model(torch.zeros(8, 64, device='cuda')).sum())\n"
        "    optimizer.step()\n"
    )
    assert any("asks for FSDP" in note for note in trace_script(script, []).notes)


def test_ligers_kernels_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments\n"
        "config = AutoConfig.for_model('llama', hidden_size=64, intermediate_size=64, num_hidden_layers=1,\n"
        "    num_attention_heads=2, vocab_size=100)\n"
        "rows = [{'input_ids': [1, 2], 'labels': [1, 2]}] * 8\n"
        "arguments = TrainingArguments('out', use_liger_kernel=True, report_to=[])\n"
        "Trainer(AutoModelForCausalLM.from_config(config), arguments, train_dataset=rows).train()\n"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TraceError, match="Liger"):
        trace_script(script, [])
