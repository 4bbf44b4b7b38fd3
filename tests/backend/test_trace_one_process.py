"""Libraries for several GPUs in a script that is traced as one process with one GPU, or as one of several."""

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


SHARDED = """
import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from transformers import AutoConfig, AutoModelForCausalLM
plugin = FullyShardedDataParallelPlugin(
    fsdp_version=2,
    auto_wrap_policy="transformer_based_wrap",
    transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
    cpu_ram_efficient_loading={},
)
accelerator = Accelerator(mixed_precision="bf16", fsdp_plugin=plugin)
config = AutoConfig.for_model("llama", hidden_size=256, intermediate_size=512, num_hidden_layers=3,
    num_attention_heads=4, vocab_size=1024)
model = AutoModelForCausalLM.from_config(config)
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
for _ in range(3):
    ids = torch.randint(0, 1000, (2, 64), device="cuda")
    accelerator.backward(model(input_ids=ids, labels=ids).loss)
    optimizer.step()
    optimizer.zero_grad()
"""


def test_accelerates_fsdp_as_one_of_many_ranks(tmp_path: Path) -> None:
    """An eighth of fp32 weights and of Adam's states, however the weights arrived."""
    script = tmp_path / "script.py"
    found = []
    for loads_once in (False, True):
        script.write_text(SHARDED.format(loads_once))
        recording = trace_script(script, [], ranks=8)
        found.append(read_step(recording, counters(recording), 3))
        buckets, parameters = found[-1].buckets_at_peak, recording.parameters
        assert buckets["weights"] == pytest.approx(4 * parameters / 8, rel=0.02)
        assert buckets["optimizer_state"] == pytest.approx(8 * parameters / 8, rel=0.02)
        assert buckets["communication"] > 0
    assert found[0].phases == found[1].phases


def test_fully_shard_joins_a_group_itself(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from torch.distributed.fsdp import fully_shard\n"
        + LOOP.format("torch.nn.Linear(256, 256, bias=False).cuda()", ", device='cuda'").replace(
            "optimizer =", "fully_shard(model)\noptimizer ="
        )
    )
    recording = trace_script(script, [], ranks=4)
    assert read_step(recording, counters(recording), 3).buckets_at_peak["weights"] == 4 * 256 * 256 // 4


def test_trainers_fsdp_as_one_of_many_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script.py"
    body = SHARDED[SHARDED.index("config =") : SHARDED.index("model, optimizer")]
    script.write_text(
        "from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments\n"
        f"{body}"
        "rows = [{'input_ids': [1] * 64, 'labels': [1] * 64}] * 64\n"
        "arguments = TrainingArguments('out', fsdp='full_shard auto_wrap', bf16=True, max_steps=3, report_to=[],\n"
        "    fsdp_config={'fsdp_version': 2, 'transformer_layer_cls_to_wrap': ['LlamaDecoderLayer']})\n"
        "Trainer(model, arguments, train_dataset=rows).train()\n"
    )
    monkeypatch.chdir(tmp_path)
    recording = trace_script(script, [], ranks=4)
    buckets = read_step(recording, counters(recording), 3).buckets_at_peak
    assert buckets["weights"] == pytest.approx(4 * recording.parameters / 4, rel=0.02)


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
