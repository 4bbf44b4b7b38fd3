"""A private name that moved in a library's next release costs a note at most: most programs use none of it."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
import transformers.utils.import_utils as import_utils

from trainmem.recording import counters, read_step
from trainmem_backend.trace.program import trace_script

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

SCRIPT = """
import accelerate
import bitsandbytes
import torch
import transformers
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters())
for _ in range(2):
    model(torch.ones(4, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
_MAPPING = next(
    name
    for name in ("PACKAGE_DISTRIBUTION_MAPPING", "_package_distribution_mapping")
    if hasattr(import_utils, name)
)
MOVED = [
    ("transformers.utils.import_utils:is_fake_tensor", "attention masks"),
    ("transformers.utils.import_utils:_is_package_available", "flash_attention_2"),
    (f"transformers.utils.import_utils:{_MAPPING}", "flash_attention_2"),
    ("transformers.modeling_flash_attention_utils:_loaded_implementation", "flash_attention_2"),
    ("transformers.modeling_flash_attention_utils:_pad_input", "flash_attention_2"),
    ("transformers.modeling_utils:_get_resolved_checkpoint_files", "from_pretrained"),
    ("transformers.core_model_loading:_materialize_copy", "from_pretrained"),
    ("transformers.initialization:TORCH_INIT_FUNCTIONS", ""),
    ("accelerate.state:AcceleratorState._reset_state", ""),
    ("accelerate.state:GradientState._reset_state", ""),
    ("safetensors.torch:_flatten_as_ptr", ""),
    ("bitsandbytes._ops:register_kernel", "bitsandbytes"),
    ("bitsandbytes.functional:get_paged", "bitsandbytes"),
    ("bitsandbytes.nn.modules:Int8Params", "bitsandbytes"),
    ("torch.distributed.fsdp._fully_shard._fsdp_param_group:foreach_reduce", "fully_shard"),
    ("torch.distributed.tensor._sharding_prop:ShardingPropagator", "fully_shard"),
]


@pytest.mark.parametrize(("name", "about"), MOVED)
def test_a_name_that_moved_costs_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, about: str
) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    module, _, attribute = name.partition(":")
    owner, _, own = attribute.rpartition(".")
    found = import_module(module)
    # what the script imports is imported with the name still there
    trace_script(path, [], steps=1)
    monkeypatch.delattr(getattr(found, owner) if owner else found, own)
    recording = trace_script(path, [], steps=2)
    assert read_step(recording, counters(recording), 2).peak_allocated_bytes > 0
    assert [about in note for note in recording.notes] == [True] * bool(about)


def test_classes_of_torch_cuda_stay_classes(tmp_path: Path) -> None:
    """Libraries annotate with them: `torch.cuda.CUDAGraph | None` is worked out where a function is defined."""
    classes = sorted(name for name, value in vars(torch.cuda).items() if isinstance(value, type))
    path = tmp_path / "train.py"
    path.write_text(f"import torch\nfor name in {classes}:\n    getattr(torch.cuda, name) | None\n{SCRIPT}")
    trace_script(path, [], steps=1)
