"""What only a CUDA device can show: the cap refuses, the counters count, and the prediction holds."""

import pytest

from trainmem.estimate import estimate
from trainmem.job import TrainingJob
from trainmem.results.plausible import device_of_gpu

torch = pytest.importorskip("torch")

from trainmem_backend.measure.build import build  # noqa: E402
from trainmem_backend.measure.device import CudaDevice  # noqa: E402
from trainmem_backend.measure.guard.cap import Cap  # noqa: E402
from trainmem_backend.measure.tasks.canary import matmul_tflops  # noqa: E402
from trainmem_backend.measure.tasks.hooks import hooks_pass  # noqa: E402
from trainmem_backend.measure.tasks.preflight import try_feature  # noqa: E402
from trainmem_backend.measure.tasks.step import memory_pass  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore"),
]

GIB = 1 << 30


@pytest.fixture
def device():
    found = CudaDevice()
    found.open()
    yield found
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


def test_the_cap_refuses_in_the_allocator(device):
    device.hold_to(Cap(cap_bytes=1 * GIB, reason="test"))
    torch.empty(GIB // 2, dtype=torch.uint8, device="cuda")
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(2 * GIB, dtype=torch.uint8, device="cuda")


def test_the_counters_see_a_tensor_and_its_end(device):
    before = device.allocated_bytes()
    device.reset_peak()
    tensor = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    assert device.allocated_bytes() - before == 64 << 20
    del tensor
    assert device.allocated_bytes() == before
    assert device.peak_allocated_bytes() - before == 64 << 20


def test_a_measured_step_is_what_was_predicted(device):
    known = device_of_gpu(torch.cuda.get_device_name())
    job = TrainingJob(
        model="gpt2-124m", micro_batch=2, sequence_length=512, device=known.name if known else "h200"
    )
    from trainmem.model.catalogue import find

    workload = build(job.with_(config=dict(find("gpt2-124m").config)), "cuda")
    measured = memory_pass(workload, device)
    assert measured["peak_allocated_bytes"] == pytest.approx(estimate(job).peak_allocated_bytes, rel=0.01)
    assert measured["peak_requested_bytes"] <= measured["peak_allocated_bytes"]
    assert measured["peak_allocated_bytes"] <= measured["peak_reserved_bytes"]
    assert measured["dtypes"]["autocast"] == "bfloat16"
    assert set(measured["dtypes"]["parameters"]) == {"float32"}
    seen = hooks_pass(workload, device)
    assert sum(seen["attention_kernels"].values()) == 12
    assert seen["saved_tensors"]["bytes"] > 0


def test_attention_runs_somehow_and_says_how(device):
    chosen = try_feature("sdpa")["chosen_kernels"]
    assert set(chosen) == {"bfloat16", "bfloat16, grouped", "float32", "float32, grouped"}


def test_the_canary_is_a_rate(device):
    rate = matmul_tflops(device, size=2048)
    assert rate is not None
    assert rate > 0
