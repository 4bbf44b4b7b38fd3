"""What scripts do around a training step: closures, ways to name the device, checks of values, ways to end."""

from pathlib import Path

import pytest

from trainmem.recording import Recording, counters, read_step
from trainmem_backend.trace.errors import TraceError
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


@pytest.mark.parametrize(
    "body",
    [
        "model = torch.nn.Linear(256, 256).to(0)\nbatch = torch.ones(4, 256).to(0)\n",
        "model = torch.nn.Linear(256, 256).to(device=0)\nbatch = torch.ones(4, 256, device=0)\n",
        "model = torch.nn.Linear(256, 256, device=torch.device(0))\nbatch = torch.ones(4, 256).cuda(0)\n",
        "torch.set_default_device('cuda')\nmodel = torch.nn.Linear(256, 256)\nbatch = torch.ones(4, 256)\n",
        "with torch.device('cuda'):\n    model = torch.nn.Linear(256, 256)\n    batch = torch.ones(4, 256)\n",
    ],
)
def test_every_way_to_name_the_device_means_the_same(tmp_path: Path, body: str) -> None:
    loop = "optimizer = torch.optim.SGD(model.parameters())\n" + STEP.replace(
        "torch.ones(4, 256, device='cuda')", "batch"
    )
    plain = "model = torch.nn.Linear(256, 256).cuda()\nbatch = torch.ones(4, 256, device='cuda')\n"
    found, expected = traced(tmp_path, body + loop), traced(tmp_path, plain + loop)
    start = [next(m.event for m in each.marks if m.step == 1) for each in (found, expected)]
    assert sorted(found.events[: start[0]])[-3:] == sorted(expected.events[: start[1]])[-3:]
    assert found.events[start[0] :] == expected.events[start[1] :]


@pytest.mark.parametrize(
    "question",
    [
        "not torch.isfinite(loss)",
        "not loss.isfinite().all()",
        "torch.isnan(loss)",
        "torch.isinf(loss).any()",
        "(~torch.isfinite(loss)).sum() > 0",
        "torch.logical_not(torch.isfinite(loss))",
        "torch.isnan(loss) or loss != loss",
        "not (torch.isfinite(loss) & (loss < float('inf')))",
    ],
)
def test_values_are_finite_for_whoever_asks(tmp_path: Path, question: str) -> None:
    traced(
        tmp_path,
        "model = torch.nn.Linear(256, 256).cuda()\n"
        "optimizer = torch.optim.SGD(model.parameters())\n"
        "for _ in range(3):\n"
        "    loss = model(torch.ones(4, 256, device='cuda')).sum()\n"
        f"    if {question}:\n        sys.exit('the loss is not finite')\n"
        "    loss.backward()\n    optimizer.step()\n    optimizer.zero_grad()\n",
    )


def test_a_hard_exit_is_an_exit(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"never called optimizer\.step"):
        traced(tmp_path, "import os\nos._exit(0)\n")
    with pytest.raises(TraceError, match="it exits with 3"):
        traced(tmp_path, "import os\nos._exit(3)\n")


def test_questions_about_the_device_have_harmless_answers(tmp_path: Path) -> None:
    traced(
        tmp_path,
        "assert torch.cuda.get_device_name() == torch.cuda.get_device_properties(0).name == 'NVIDIA H200'\n"
        "torch.cuda.set_per_process_memory_fraction(0.5)\n"
        "torch.cuda.memory_snapshot()\n"
        "torch.cuda.host_memory_stats()\n"
        "assert torch.cuda.utilization() == torch.cuda.temperature() == 0\n"
        "model = torch.nn.Linear(256, 256).cuda()\n"
        "optimizer = torch.optim.SGD(model.parameters())\n"
        "torch.cuda.nvtx.range_push('steps')\n"
        f"with torch.cuda.nvtx.range('steps'):\n    pass\n{STEP}"
        "torch.cuda.nvtx.range_pop()\n",
    )


def test_a_step_that_the_device_has_no_room_for_says_so(tmp_path: Path) -> None:
    start = "model = torch.nn.Linear(256, 256).cuda()\noptimizer = torch.optim.SGD(model.parameters())\n"
    assert traced(tmp_path, start + STEP).warnings == []
    (too_much,) = traced(tmp_path, f"{start}x = torch.empty(1 << 40, device='cuda')\ndel x\n{STEP}").warnings
    assert too_much.startswith(
        "h200: the program would have run out of memory in setup, at empty, asking for"
    )
    held = STEP.replace("    optimizer.step()\n", "    optimizer.step()\n    x = x.to('cuda')\n")
    (late,) = traced(tmp_path, f"{start}x = torch.empty(1 << 36)\n{held}").warnings
    assert "in step 1: optimizer step" in late


def test_recurrent_layers_are_said_not_to_be_exact(tmp_path: Path) -> None:
    recording = traced(
        tmp_path,
        "class Tagger(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.rnn = torch.nn.LSTM(256, 64, batch_first=True)\n"
        "    def forward(self, x):\n"
        "        return self.rnn(x[None])[0]\n"
        "model = Tagger().cuda()\n"
        f"optimizer = torch.optim.SGD(model.parameters())\n{STEP}",
    )
    assert [warning for warning in recording.warnings if "cuDNN" in warning] == recording.warnings != []


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (
            "import threading\n"
            "thread = threading.Thread(target=lambda: torch.ones(4, 4, device='cuda'))\n"
            "thread.start()\nthread.join()\n",
            "^threads: another thread than the program's first uses the GPU",
        ),
        (
            "from concurrent.futures import ThreadPoolExecutor\n"
            "model = torch.nn.Linear(4, 4).cuda()\nbatch = torch.ones(4, 4, device='cuda')\n"
            "with ThreadPoolExecutor() as pool:\n    pool.submit(model, batch).result()\n",
            r"^train\.py, line 7: threads: a module is called in another thread",
        ),
        (
            "torch.from_dlpack(torch.ones(4, device='cuda'))\n",
            r"^train\.py, line 3: DLPack hands on a tensor's memory",
        ),
        (
            "from torch.nn.attention.flex_attention import flex_attention\n"
            "query = torch.ones(1, 4, 128, 64, device='cuda', requires_grad=True)\n"
            "flex_attention(query, query, query)\n",
            r"^train\.py, line 5: flex_attention is made of compiled kernels",
        ),
        (
            "with torch.cuda.graph(torch.cuda.CUDAGraph()):\n    pass\n",
            r"^train\.py, line 3: CUDA graphs keep memory in a pool of their own",
        ),
        (
            "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
            "FSDP(torch.nn.Linear(4, 4))\n",
            r"^train\.py, line 4: FullyShardedDataParallel \(FSDP1\) is not replayed",
        ),
    ],
    ids=["thread", "pool", "dlpack", "flex", "graph", "fsdp1"],
)
def test_what_fake_tensors_cannot_follow_is_refused(tmp_path: Path, body: str, line: str) -> None:
    with pytest.raises(TraceError, match=line) as failure:
        traced(tmp_path, body)
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize(
    "said",
    [
        "Could not run 'aten::empty.memory_format' with arguments from the 'CUDA' backend.",
        "Torch not compiled with CUDA enabled",
        "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU",
    ],
)
def test_every_build_of_torch_names_the_device_that_a_thread_lacks(said: str) -> None:
    from trainmem_backend.trace.script_host import _is_about_the_device

    assert _is_about_the_device(RuntimeError(said))
    assert not _is_about_the_device(RuntimeError("the file is not there"))


def test_a_thread_of_its_own_business_is_left_alone(tmp_path: Path) -> None:
    traced(
        tmp_path,
        "import threading\n"
        "model = torch.nn.Linear(256, 256).cuda()\n"
        "optimizer = torch.optim.SGD(model.parameters())\n"
        f"threading.Thread(target=lambda: sum(range(9))).start()\n{STEP}",
    )


def test_factories_inside_functions_of_torch(tmp_path: Path) -> None:
    """`embedding_bag` counts its bags with a tensor that it makes itself, beside its input."""
    recording = traced(
        tmp_path,
        "model = torch.nn.EmbeddingBag(5000, 128).cuda()\n"
        "optimizer = torch.optim.SGD(model.parameters())\n"
        "for _ in range(3):\n"
        "    model(torch.randint(0, 5000, (64, 20), device='cuda')).sum().backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n",
    )
    assert "arange" in recording.op_of
    assert recording.parameters == 5000 * 128


@pytest.mark.parametrize("where", ["device='cuda:1'", "device=1", "device=torch.device('cuda', 1)"])
def test_a_second_gpu_is_refused(tmp_path: Path, where: str) -> None:
    with pytest.raises(TraceError, match=r"line 3: cuda:1: a traced program has one GPU"):
        traced(tmp_path, f"torch.ones(4, {where})\n")
    with pytest.raises(TraceError, match=r"line 3: cuda:1"):
        traced(tmp_path, "torch.ones(4).cuda(1)\n")
    with pytest.raises(TraceError, match=r"line 3: cuda:1"):
        traced(tmp_path, "torch.nn.Linear(4, 4).to(1)\n")


def test_a_size_that_depends_on_values_is_said(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"line 6: aten\.linalg_lstsq.*depends on values"):
        traced(
            tmp_path,
            "model = torch.nn.Linear(64, 30).cuda()\n"
            "optimizer = torch.optim.SGD(model.parameters())\n"
            "scores = model(torch.ones(50, 64, device='cuda'))\n"
            "torch.linalg.lstsq(scores, torch.ones(50, 2, device='cuda')).solution.sum().backward()\n",
        )


def test_the_first_of_spawned_processes_runs(tmp_path: Path) -> None:
    body = STEP.replace("\n", "\n    ")
    recording = traced(
        tmp_path,
        "import torch.multiprocessing as mp\n"
        "def main(rank, size):\n"
        "    torch.distributed.init_process_group('nccl', rank=rank, world_size=size)\n"
        "    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256).to(rank))\n"
        f"    optimizer = torch.optim.SGD(model.parameters())\n    {body}\n"
        "if __name__ == '__main__':\n    mp.spawn(main, args=(4,), nprocs=4)\n",
    )
    assert "mp.spawn: the first of its 4 processes runs, alone" in recording.notes


@pytest.mark.parametrize(
    "statement",
    [
        "assert f'{loss:.3f}' and f'{loss}'",
        "assert loss.type() == 'torch.cuda.FloatTensor' and isinstance(loss, torch.cuda.FloatTensor)",
        "assert torch.ones(2).type(torch.cuda.LongTensor).is_cuda",
        "assert torch.cuda.FloatTensor(2, 3).shape == (2, 3) and torch.cuda.LongTensor([1, 2]).is_cuda",
        "loss.record_stream(torch.cuda.current_stream())",
        "assert int(torch.version.cuda.split('.')[0]) >= 11",
        "assert torch.cuda.random.get_rng_state_all()",
        "import copy\n    assert len(list(copy.deepcopy(torch.nn.BatchNorm1d(8).cuda()).buffers())) == 3",
        "assert model.weight.data_ptr() == model.weight.view(-1).data_ptr() != model.bias.data_ptr()",
    ],
)
def test_idioms_of_scripts(tmp_path: Path, statement: str) -> None:
    traced(
        tmp_path,
        "model = torch.nn.Linear(256, 256).cuda()\noptimizer = torch.optim.SGD(model.parameters())\n"
        f"for _ in range(3):\n    loss = model(torch.ones(4, 256, device='cuda')).sum()\n    {statement}\n"
        "    loss.backward()\n    optimizer.step()\n    optimizer.zero_grad()\n",
    )


@pytest.mark.parametrize("size", [1, 4])
def test_a_sharded_model_that_is_filled_after_it_was_built_on_meta(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(size))
    recording = traced(
        tmp_path,
        "from torch.distributed.fsdp import fully_shard\n"
        "torch.distributed.init_process_group('nccl')\n"
        "with torch.device('meta'):\n"
        "    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256, bias=False) for _ in range(4)))\n"
        "for layer in model:\n    fully_shard(layer)\n"
        "fully_shard(model)\nmodel.to_empty(device='cuda')\n"
        "for layer in model:\n    layer.reset_parameters()\n"
        f"optimizer = torch.optim.AdamW(model.parameters())\n{STEP}",
    )
    assert recording.parameters == 4 * 256 * 256
    buckets = read_step(recording, counters(recording), 2).buckets_at_peak
    assert buckets["weights"] == 4 * 4 * 256 * 256 // size


def test_optimizers_that_gradients_call_are_part_of_backward(tmp_path: Path) -> None:
    """No more than one gradient is there at a time, and Adam's two states of each weight stay."""
    recording = traced(
        tmp_path,
        "model = torch.nn.Sequential(*(torch.nn.Linear(512, 512, bias=False) for _ in range(4))).cuda()\n"
        "optimizers = {p: torch.optim.AdamW([p], foreach=False) for p in model.parameters()}\n"
        "def update(p):\n    optimizers[p].step()\n    optimizers[p].zero_grad()\n"
        "for p in model.parameters():\n    p.register_post_accumulate_grad_hook(update)\n"
        "for _ in range(4):\n    model(torch.ones(4, 512, device='cuda')).sum().backward()\n",
    )
    assert phases(recording, 2) == [("forward", 0), ("backward", 0), ("optimizer", 0)]
    step = read_step(recording, counters(recording), 2)
    weight = 4 * 512 * 512
    assert step.buckets_at_peak["weights"] == 4 * weight
    assert step.buckets_at_peak["optimizer_state"] == pytest.approx(8 * weight, rel=0.01)
    assert step.buckets_at_peak.get("gradients", 0) <= weight
    assert step.phases["after_backward_bytes"] <= step.phases["start_bytes"]


def test_copies_on_the_host_are_no_parameters_of_their_own(tmp_path: Path) -> None:
    recording = traced(
        tmp_path,
        "model = torch.nn.Linear(256, 256).cuda()\n"
        "masters = [p.detach().cpu().requires_grad_() for p in model.parameters()]\n"
        "optimizer = torch.optim.AdamW(masters)\n"
        "for _ in range(3):\n"
        "    model(torch.ones(4, 256, device='cuda')).sum().backward()\n"
        "    for master, p in zip(masters, model.parameters()):\n"
        "        master.grad, p.grad = p.grad.cpu(), None\n"
        "    optimizer.step()\n    optimizer.zero_grad()\n",
    )
    assert recording.parameters == recording.trainable_parameters == 256 * 256 + 256


@pytest.mark.parametrize(
    "made",
    [
        "torch.nn.utils.rnn.pad_sequence([torch.ones(3, 4), torch.ones(5, 4)])",
        "torch.nn.utils.rnn.pack_sequence([torch.ones(5, 4), torch.ones(3, 4)]).data",
        "torch.nn.functional.one_hot(torch.tensor([1, 2]), 5)",
        "torch.cov(torch.ones(3, 4))",
        "torch.ones(5).quantile(0.5)",
    ],
)
def test_what_is_made_of_tensors_on_the_host_is_on_the_host(tmp_path: Path, made: str) -> None:
    """In C++ these make tensors of their own, as a collate function's do."""
    body = "model = torch.nn.Linear(4, 4).cuda()\noptimizer = torch.optim.SGD(model.parameters())\n"
    test = (
        f"before = torch.cuda.memory_allocated()\nmade = {made}\nassert not made.is_cuda\nmade.sum().item()\n"
    )
    counted = "assert torch.cuda.memory_allocated() == before\n"
    step = "model(torch.ones(2, 4, device='cuda')).sum().backward()\noptimizer.step()\n"
    assert traced(tmp_path, f"{body}{test}{counted}{step}").trainable_parameters == 20
