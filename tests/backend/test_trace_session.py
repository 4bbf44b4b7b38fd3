"""A trace leaves the process as it found it, however it ends, and says in one line why it cannot be made."""

from __future__ import annotations

import ast
import gc
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from trainmem.job import TrainingJob
from trainmem.recording import counters, read_step
from trainmem_backend.trace import TraceError, hook_points, trace, trace_program, trace_step
from trainmem_backend.trace.kernels import registry

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

SMALL = TrainingJob.from_json(
    {
        "config": {"model_type": "gpt2", "vocab_size": 512, "n_embd": 64, "n_layer": 1, "n_head": 4},
        "micro_batch": 2,
        "sequence_length": 32,
        "precision": "amp_bf16",
        "device": "h200",
    }
)


def peak(job: TrainingJob = SMALL) -> int:
    recording = trace(job, steps=2)
    return read_step(recording, counters(recording), 2).peak_allocated_bytes


def what_is_patched() -> dict[str, int]:
    """Every attribute of the modules and classes that a trace patches, by identity."""
    import transformers.utils.import_utils as import_utils
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.distributed.fsdp import _fully_shard
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    owners: tuple[Any, ...] = (
        torch,
        torch.accelerator,
        torch.amp,
        torch.amp.autocast_mode,
        torch.autograd,
        torch.cuda,
        torch.cuda.amp,
        torch.cuda.memory,
        torch.distributed,
        torch.nn.Module,
        torch.nn.Parameter,
        torch.nn.parallel,
        torch.optim.Optimizer,
        sys.modules["torch.optim.optimizer"],
        torch.utils._foreach_utils,
        torch.utils.data.DataLoader,
        torch.UntypedStorage,
        FakeTensor,
        ShardingPropagator,
        _fully_shard._fsdp_param_group,
        import_utils,
    )
    return {f"{owner.__name__}.{name}": id(value) for owner in owners for name, value in vars(owner).items()}


def runs_as_ever() -> None:
    """Ordinary code computes on the CPU, casts what the CPU's autocast casts, and finds no GPU."""
    assert torch.utils._python_dispatch._len_torch_dispatch_stack() == 0
    assert torch._C._len_torch_function_stack() == 0
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")
    assert (
        torch.cuda.device_count() == torch._C._cuda_getDeviceCount()
        if torch.backends.cuda.is_built()
        else True
    )
    layer = torch.nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    with torch.no_grad():
        layer.weight.fill_(2.0)
    torch.nn.functional.dropout(layer(torch.ones(3, 2)), 0.0).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.tolist() == [[3.0, 3.0]]
    optimizer.step()
    assert layer.weight.tolist() == [[-1.0, -1.0]]
    query = torch.ones(1, 1, 2, 8)
    assert torch.nn.functional.scaled_dot_product_attention(query, query, query).sum().item() == 16.0
    half = torch.ones(2, 2, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (half.float() @ half.float()).dtype is torch.bfloat16
        # CUDA's autocast would sum in fp32
        assert half.sum().dtype is torch.bfloat16


@pytest.fixture
def unchanged() -> Iterator[None]:
    """Whatever the test does, the process and the next trace are as before it."""
    gc.freeze()
    usual = peak()
    before = what_is_patched()
    yield
    after = what_is_patched()
    assert {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)} == set()
    runs_as_ever()
    assert peak() == usual
    gc.unfreeze()


def model_on_gpu() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64)).cuda()


def in_forward(error: BaseException) -> None:
    model = model_on_gpu()

    def fail(*_: object) -> None:
        raise error

    model[2].register_forward_pre_hook(fail)
    with torch.autocast("cuda", dtype=torch.bfloat16), torch.no_grad():
        model(torch.ones(4, 64, device="cuda"))


def in_backward(error: BaseException) -> None:
    model = model_on_gpu()

    def fail(*_: object) -> None:
        raise error

    model[0].weight.register_hook(fail)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(torch.ones(4, 64, device="cuda")).float().sum()
    loss.backward()


def in_recomputation(error: BaseException) -> None:
    from torch.utils.checkpoint import checkpoint

    model = model_on_gpu()
    calls: list[object] = []

    def fail_again(*_: object) -> None:
        calls.append(1)
        if len(calls) > 1:
            raise error

    model[2].register_forward_pre_hook(fail_again)
    checkpoint(model, torch.ones(4, 64, device="cuda"), use_reentrant=False).sum().backward()


def in_optimizer(error: BaseException) -> None:
    model = model_on_gpu()
    optimizer = torch.optim.AdamW(model.parameters())

    def fail(*_: object) -> None:
        raise error

    optimizer.register_step_post_hook(fail)
    model(torch.ones(4, 64, device="cuda")).sum().backward()
    optimizer.step()


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("place", [in_forward, in_backward, in_recomputation, in_optimizer])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), ValueError("no")], ids=repr)
def test_a_program_that_dies_leaves_nothing_behind(
    place: Callable[[BaseException], None], error: BaseException
) -> None:
    with pytest.raises(type(error)):
        trace_program(lambda: place(error))


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_trace_that_dies_of_its_own_leaves_nothing_behind(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(call: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setitem(registry._RULES, torch.ops.aten.mm.default, fail)
        with pytest.raises(error if error is KeyboardInterrupt else TraceError):
            trace(SMALL, steps=1)


@pytest.mark.usefixtures("unchanged")
def test_an_interrupt_while_it_is_set_up_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    from trainmem_backend.trace import session

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(session, "virtual_sharding", interrupted)
        with pytest.raises(KeyboardInterrupt):
            trace(SMALL, steps=1)


@pytest.mark.usefixtures("unchanged")
def test_one_trace_runs_at_a_time() -> None:
    failures: list[Exception] = []

    def attempt() -> None:
        try:
            trace(SMALL, steps=1)
        except TraceError as error:
            failures.append(error)

    def program() -> None:
        attempt()
        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join()

    with pytest.raises(TraceError, match=r"never called optimizer\.step"):
        trace_program(program)
    assert [str(failure).partition(";")[0] for failure in failures] == [
        "trace: another one runs in this process"
    ] * 2


def test_progress_rises_to_the_end() -> None:
    shares: list[float] = []
    trace(TrainingJob.from_json({**SMALL.to_json(), "accumulation": 4}), steps=3, progress=shares.append)
    assert len(shares) > 8
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_steps_of_ones_own_have_progress_and_the_same_peak() -> None:
    def build() -> Any:
        model = model_on_gpu()
        return model, torch.optim.AdamW(model.parameters())

    def step(state: Any) -> None:
        model, optimizer = state
        model(torch.ones(4, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    recording = trace_step(build, step, steps=3)
    result = counters(recording)
    peaks = [read_step(recording, result, number).peak_allocated_bytes for number in (2, 3)]
    assert peaks[0] == peaks[1]


@pytest.mark.parametrize("point", hook_points._HOOK_POINTS)
def test_a_missing_hook_point_is_one_line(point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hook_points.require(point)
    monkeypatch.setattr(hook_points, "import_module", lambda name: object())
    with pytest.raises(TraceError) as failure:
        hook_points.require(point)
    module, _, path = point.partition(":")
    assert f": there is no {module}.{path}, which the trace relies on" in str(failure.value)
    assert str(failure.value).startswith("torch ")
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize(
    ("library", "version", "line"),
    [
        ("torch", "2.10.1+cu130", r"needs torch 2\.11 or newer; this is 2\.10\.1\+cu130"),
        ("transformers", "5.2.0", r"needs transformers 5\.17 or newer; this is 5\.2\.0"),
        ("transformers", "4.57.6", r"needs transformers 5\.17 or newer; this is 4\.57\.6"),
        ("transformers", None, r"needs transformers, which is not installed"),
    ],
)
def test_a_library_that_is_too_old_is_one_line(
    library: str, version: str | None, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = metadata.version

    def answer(name: str) -> str:
        if name == library and version is None:
            raise metadata.PackageNotFoundError(name)
        return version if name == library and version is not None else installed(name)

    monkeypatch.setattr(hook_points.metadata, "version", answer)
    hook_points.require_hook_points.cache_clear()
    with pytest.raises(TraceError, match=line):
        hook_points.require_hook_points()


def private_names(source: str) -> set[str]:
    """What a module uses of torch's under a private name, dotted from torch on; ops are public."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            found.add(ast.unparse(node))
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{name.name}" for name in node.names}
    private = {name for name in found if name.startswith("torch.") and "._" in name}
    private = {name for name in private if not name.startswith("torch.ops.") and "__" not in name}
    return {name for name in private if not any(other.startswith(f"{name}.") for other in private)}


def test_every_private_name_that_every_trace_needs_is_a_hook_point() -> None:
    folder = Path(hook_points.__file__).parent
    sources = [path for path in folder.rglob("*.py") if path.name not in ("distributed.py", "hook_points.py")]
    used = set().union(*(private_names(path.read_text(encoding="utf-8")) for path in sources))
    listed = {point.replace(":", ".") for point in hook_points._HOOK_POINTS}
    assert "torch._C._current_autograd_node" in used
    assert {name for name in used if not any(point.startswith(name) for point in listed)} == set()


def test_what_libraries_say_that_concerns_no_reader_is_kept_quiet(caplog: pytest.LogCaptureFixture) -> None:
    from trainmem_backend.trace.libraries import quiet_libraries

    cpu = logging.getLogger("bitsandbytes.backends.cpu.ops")
    with quiet_libraries():
        cpu.warning("Failed to load CPU gemm_4bit_forward from kernels-community: %s.", "no kernels")
        cpu.warning("something else")
    cpu.warning("Failed to load CPU kernels")
    assert [record.msg for record in caplog.records] == ["something else", "Failed to load CPU kernels"]


def test_a_model_that_fails_says_so_once(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    config = {**(SMALL.config or {}), "n_head": 5}
    with pytest.raises(TraceError, match=r"modeling_gpt2\.py, line [0-9]+: ") as failure:
        trace(TrainingJob.from_json({**SMALL.to_json(), "config": config}))
    assert "\n" not in str(failure.value)
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")
