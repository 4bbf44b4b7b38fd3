"""Each lever pulls what its name says and nothing else, and says so where it does not apply."""

import pytest

from trainmem.device import device
from trainmem.estimate import estimate
from trainmem.fit import room
from trainmem.fit.report import limits_of
from trainmem.job import Lora, Sharding, TrainingJob
from trainmem.levers import ALL_LEVERS, CLUSTER_LEVERS, LEVERS_BY_COST
from trainmem.units import format_gib
from trainmem.verdict import verdict

JOB = TrainingJob(
    model="pythia-410m", micro_batch=8, attention="eager", zero_grad="zeros", optimizer="adamw", device="h200"
)
BY_KEY = {lever.key: lever for lever in ALL_LEVERS}

MOVES = {
    "attention": {"attention"},
    "zero_grad": {"zero_grad"},
    "optimizer_fused": {"optimizer"},
    "micro_batch": {"micro_batch", "accumulation"},
    "loss": {"loss"},
    "checkpointing": {"checkpointing"},
    "optimizer_8bit": {"optimizer"},
    "precision": {"precision"},
    "lora": {"lora", "precision"},
    "qlora": {"lora", "precision", "base_quantization"},
    "sharding": {"sharding", "precision"},
    "offload": {"sharding", "precision"},
}


def changed(before: TrainingJob, after: TrainingJob) -> set[str]:
    return {name for name, value in before.to_json().items() if after.to_json()[name] != value}


def test_every_lever_is_here_once_and_cluster_levers_come_last():
    assert set(BY_KEY) == set(MOVES)
    assert len(ALL_LEVERS) == len(BY_KEY)
    assert (*LEVERS_BY_COST, *CLUSTER_LEVERS) == ALL_LEVERS


@pytest.mark.parametrize("key", MOVES)
def test_a_lever_moves_its_fields_alone(key):
    after = BY_KEY[key].pull(JOB)
    assert after is not None
    assert changed(JOB, after) == MOVES[key]


@pytest.mark.parametrize("key", [key for key in MOVES if not BY_KEY[key].repeats])
def test_a_lever_that_was_pulled_has_nothing_left_to_give(key):
    after = BY_KEY[key].pull(JOB)
    assert after is not None
    assert BY_KEY[key].pull(after) is None


def test_the_micro_batch_halves_and_the_step_keeps_its_tokens():
    job, pull = JOB, BY_KEY["micro_batch"].pull
    while (smaller := pull(job)) is not None:
        assert smaller.micro_batch * smaller.accumulation == JOB.micro_batch * JOB.accumulation
        job = smaller
    assert job.micro_batch == 1
    assert pull(JOB.with_(micro_batch=3)) is None


def test_ranks_double_up_to_a_limit():
    job, ranks = JOB, []
    while (wider := BY_KEY["sharding"].pull(job)) is not None:
        ranks.append(wider.sharding.data_parallel)
        job = wider
    assert ranks == [2, 4, 8, 16, 32, 64]
    ddp = JOB.with_(sharding=Sharding(mode="ddp", data_parallel=4))
    assert BY_KEY["sharding"].pull(ddp).sharding == Sharding(mode="fsdp2", data_parallel=4)


def test_offloading_moves_nothing_where_cpu_and_gpu_share_one_memory():
    assert BY_KEY["offload"].pull(JOB.with_(device="spark")) is None
    assert BY_KEY["offload"].pull(JOB).precision == "bf16_master"
    assert BY_KEY["offload"].pull(JOB.with_(precision="bf16")).precision == "bf16"


def test_adapters_leave_the_optimizer_and_the_precision_of_the_base_alone():
    job = JOB.with_(lora=Lora(rank=4), precision="bf16")
    for key in ("lora", "precision", "optimizer_8bit", "offload"):
        assert BY_KEY[key].pull(job) is None
    assert BY_KEY["qlora"].pull(job).lora == Lora(rank=4)


def test_a_model_without_linear_layers_has_nothing_to_pack():
    (packing,) = (lever for lever in LEVERS_BY_COST if lever.key == "qlora")
    job = TrainingJob(model="gpt2-124m")
    assert packing.pull(job) is None
    assert packing.pull(job.with_(model="qwen2.5-0.5b")).base_quantization == "nf4"
    assert any(
        "packs linear layers alone" in note
        for note in estimate(job.with_(lora=Lora(), base_quantization="nf4"), detail="fast").warnings
    )
    titles = [row.title for row in limits_of(job, room("t4"), "fast")]
    assert any("LoRA" in title for title in titles)
    assert not any("QLoRA" in title for title in titles)


def test_a_classifier_has_no_fused_loss_and_no_adapters():
    job = TrainingJob(model="bert-base", task="sequence_classification", micro_batch=8)
    for key in ("loss", "lora", "qlora"):
        assert BY_KEY[key].pull(job) is None


@pytest.mark.parametrize(("capacity", "said"), [("rtx-4090", (2, 4)), ("a100-40gb", (4, 2))])
def test_the_verdict_says_how_far_the_micro_batch_was_halved(capacity, said):
    job = TrainingJob(model="gpt2-774m", micro_batch=8, optimizer="adamw_fused", device=capacity)
    found = verdict(job, estimate(job), device(capacity))
    assert found.cheapest_lever is not None
    sentence, changed = found.cheapest_lever
    assert (changed.micro_batch, changed.accumulation) == said
    words = f"icro batch {said[0]} with accumulation {said[1]}"
    assert found.sentence.endswith(f"m{words} would fit.")
    assert sentence.startswith(f"M{words}: ")
    assert verdict(changed, estimate(changed), device(capacity)).fits


ADAPTERS = TrainingJob(model="qwen2.5-7b", lora=Lora(), device="rtx-4090")
QLORA = ADAPTERS.with_(precision="bf16", base_quantization="nf4")


def test_two_levers_that_leave_the_base_alone_come_before_packing_it():
    found = verdict(ADAPTERS, estimate(ADAPTERS), device("rtx-4090"))
    assert found.cheapest_lever is not None
    sentence, changed = found.cheapest_lever
    assert changed == ADAPTERS.with_(checkpointing="full", precision="bf16")
    assert found.sentence.endswith("; checkpointing with the frozen base in 16 bit (pure bf16) would fit.")
    assert sentence.startswith("Checkpointing with ")
    assert sentence.endswith(", changes numerics.")
    assert verdict(changed, estimate(changed), device("rtx-4090")).fits


@pytest.mark.parametrize(
    ("job", "usual", "says"),
    [
        (ADAPTERS, "bf16", "The frozen base is held in fp32 here, 28.4 GiB, with 16-bit copies"),
        (ADAPTERS.with_(precision="fp32"), "bf16", "The frozen base is held in fp32 here, 28.4 GiB; most"),
        (QLORA, "amp_bf16", "prepare_model_for_kbit_training puts them into fp32"),
        (ADAPTERS.with_(precision="bf16"), None, ""),
        (QLORA.with_(precision="amp_bf16"), None, ""),
        (QLORA.with_(model="gpt2-774m"), None, ""),
        (ADAPTERS.with_(lora=None), None, ""),
    ],
)
def test_the_verdict_says_what_a_frozen_base_is_held_in(job, usual, says):
    found = verdict(job, estimate(job, detail="fast"), device("b200"), try_levers=False)
    if usual is None:
        assert found.note is None
        return
    peak = estimate(job.with_(precision=usual), detail="fast").peak_allocated_bytes
    assert says in found.note
    assert found.note.endswith(f"(precision {usual}): {format_gib(peak)} at the peak.")


def test_a_sum_s_note_keeps_its_error_beside_the_base_s():
    note = verdict(ADAPTERS, estimate(ADAPTERS, "whiteboard"), device("b200")).note
    assert note.startswith("No step was replayed, so this allows")
    assert "The frozen base is held in fp32" in note


def test_what_is_reserved_beyond_the_device_is_explained():
    job = QLORA.with_(checkpointing="full", sequence_length=8192)
    answer, on = estimate(job), device("rtx-4090")
    assert answer.peak_allocated_bytes <= on.allocator_limit_bytes < answer.peak_reserved_bytes
    held, may = format_gib(answer.peak_reserved_bytes), format_gib(on.allocator_limit_bytes)
    said = (
        f"{held} reserved is what the allocator holds by default where it has room; here it may hold {may}."
    )
    assert verdict(job, answer, on).note.startswith(said)
