"""A step's floor: the sums one does by hand, and no measured step below it."""

import pytest

from trainmem.device import device
from trainmem.fit.floor import measured_fraction, optimizer_traffic_bytes, recomputed_flops, step_floor
from trainmem.fit.links import HOST_MEMORY_BYTES_PER_SECOND, links_of
from trainmem.fit.measured import timed_steps
from trainmem.job import Lora, Sharding, TrainingJob
from trainmem.model import resolve
from trainmem.results import step_flops
from trainmem.results.plausible import device_of_gpu

SEVEN = TrainingJob(model="llama2-7b", micro_batch=1, sequence_length=2048, precision="fp32", device="spark")
PARAMETERS = 6_738_415_616


def test_seven_billion_take_four_tenths_of_a_second_to_read_on_a_spark():
    reading = 16 * PARAMETERS / device("spark").bandwidth_bytes_per_second
    assert reading == pytest.approx(0.4, abs=0.01)
    floor = step_floor(SEVEN)
    assert floor.optimizer_bytes == 28 * PARAMETERS
    assert floor.optimizer_seconds == pytest.approx(reading * 28 / 16)


@pytest.mark.parametrize(
    ("changes", "each"),
    [
        ({}, 28),
        ({"precision": "bf16"}, 14),
        ({"precision": "bf16_kahan"}, 18),
        ({"precision": "bf16_master"}, 30),
        ({"optimizer": "sgd"}, 12),
        ({"optimizer": "sgd_momentum"}, 20),
        ({"optimizer": "adamw8bit"}, 12 + 2 * 2.03125),
    ],
)
def test_bytes_of_the_optimizer_step(changes, each):
    assert optimizer_traffic_bytes(SEVEN.with_(**changes)) == pytest.approx(each * PARAMETERS, rel=1e-3)


def test_checkpointing_computes_the_forward_pass_again():
    job = SEVEN.with_(checkpointing="full")
    architecture = resolve(job).architecture
    again = recomputed_flops(job, architecture)
    assert 0.31 < again / step_flops(job, architecture) < 1 / 3
    assert recomputed_flops(SEVEN, architecture) == 0
    assert recomputed_flops(job.with_(checkpointing="selective"), architecture) < 0.1 * again
    assert step_floor(job).flops == step_flops(job, architecture) + again


def test_a_mixture_computes_the_experts_that_a_token_meets():
    job = TrainingJob(model="mixtral-8x7b", checkpointing="full")
    architecture = resolve(job).architecture
    assert recomputed_flops(job, architecture) < step_flops(job, architecture) / 2.9


def test_what_crosses_a_link():
    job = TrainingJob(model="llama2-7b", precision="bf16", device="h100-80gb")
    eight = job.with_(sharding=Sharding(mode="fsdp2", data_parallel=8))
    each = 2 * PARAMETERS * 7 / 8 / links_of("h100-80gb").peers_bytes_per_second
    assert step_floor(eight).link_seconds == pytest.approx(3 * each)
    assert step_floor(
        eight.with_(sharding=Sharding(mode="ddp", data_parallel=8))
    ).link_seconds == pytest.approx(2 * each)
    assert step_floor(eight).optimizer_bytes == pytest.approx(step_floor(job).optimizer_bytes / 8, rel=1e-6)
    assert step_floor(eight).tokens == 8 * step_floor(job).tokens
    assert step_floor(job).link_seconds == 0
    away = job.with_(precision="bf16_master", sharding=Sharding(mode="zero2", offload="cpu"))
    assert step_floor(away).optimizer_seconds == 0
    stepping = optimizer_traffic_bytes(away) / HOST_MEMORY_BYTES_PER_SECOND
    assert step_floor(away).offload_seconds == pytest.approx(4 * PARAMETERS / 64e9 + stepping)


def test_every_further_micro_batch_adds_its_gradients():
    one = SEVEN.with_(precision="amp_bf16")
    four = step_floor(one.with_(accumulation=4))
    assert step_floor(one).adding_seconds == 0
    # two gradients read and their sum written, and every weight cast again
    each = (3 * 4 + 4 + 2) * PARAMETERS / device("spark").bandwidth_bytes_per_second
    assert four.adding_seconds == pytest.approx(3 * each)
    assert four.seconds > 4 * step_floor(one).compute_seconds + 3 * each


def test_gradients_kept_as_zeros_are_written_and_read_once_more():
    plain, zeros = (step_floor(SEVEN.with_(zero_grad=kept)).weights_seconds for kept in ("none", "zeros"))
    assert zeros - plain == pytest.approx(2 * 4 * PARAMETERS / device("spark").bandwidth_bytes_per_second)


def test_without_a_bf16_rate_the_bytes_are_the_floor():
    floor = step_floor(TrainingJob(model="gpt2-124m", device="t4"))
    assert floor.compute_seconds is None
    assert floor.seconds == floor.weights_seconds + floor.optimizer_seconds > 0


def test_no_measured_step_is_below_its_floor():
    fractions = [
        (step_floor(job, machine).seconds / row.step_seconds, row.id)
        for job, row in timed_steps()
        if row.step_seconds and (machine := device_of_gpu(str(row.environment.get("gpu"))))
    ]
    assert len(fractions) > 100
    assert max(fractions)[0] < 0.7
    assert min(fractions)[0] > 0.01


def test_the_fraction_is_of_steps_that_are_alike():
    found = measured_fraction(SEVEN.with_(precision="bf16", checkpointing="full", device="h200"))
    assert found.rows >= 5
    assert found.alike == "full training, bf16, sdpa"
    assert 0.2 < found.least <= found.median <= found.most < 0.6
    adapted = measured_fraction(SEVEN.with_(precision="bf16", lora=Lora()))
    assert adapted.alike == "adapters, bf16, sdpa"
    assert adapted.machine == "h200"


@pytest.mark.parametrize("lora", [None, Lora()])
@pytest.mark.parametrize("precision", ["fp32", "amp_bf16", "bf16", "bf16_master"])
@pytest.mark.parametrize("model", ["qwen2.5-7b", "llama3.2-1b", "qwen2.5-0.5b", "phi3-mini"])
@pytest.mark.parametrize("machine", ["spark", "h200"])
def test_half_the_work_is_never_expected_to_take_longer(machine, model, precision, lora):
    job = TrainingJob(model=model, precision=precision, lora=lora, device=machine)

    def expected(**changes):
        changed = job.with_(**changes)
        return step_floor(changed).seconds / measured_fraction(changed).median

    for name, most in (("sequence_length", 4096), ("micro_batch", 256), ("accumulation", 64)):
        seconds = []
        while most:
            seconds.append(expected(**{name: most}))
            most //= 2
        assert seconds == sorted(seconds, reverse=True), name
