"""A predicted step saved as a snapshot: our viewer reads back what the estimate said."""

import pytest

from trainmem.estimate import estimate
from trainmem.instant import short_op
from trainmem.job import Lora, Sharding, TrainingJob
from trainmem.predicted_snapshot import predicted_snapshot
from trainmem.snapshot.analysis import analyse
from trainmem.snapshot.callsites import folded
from trainmem.snapshot.reader import read_snapshot

_SMALL = {
    "model_type": "llama", "vocab_size": 4096, "hidden_size": 512, "intermediate_size": 1024,
    "num_hidden_layers": 7, "num_attention_heads": 8, "num_key_value_heads": 4,
}  # fmt: skip


@pytest.mark.parametrize(
    "job",
    [
        TrainingJob(config=_SMALL, micro_batch=2, sequence_length=512, device="h200"),
        TrainingJob(config=_SMALL, precision="bf16", checkpointing="full", accumulation=2),
        TrainingJob(config=_SMALL, precision="bf16", lora=Lora(rank=8), base_quantization="nf4"),
        TrainingJob(
            config=_SMALL, precision="fsdp_mp_bf16", sharding=Sharding(mode="fsdp2", data_parallel=4)
        ),
    ],
    ids=["plain", "checkpointed", "qlora", "fsdp2"],
)
def test_the_viewer_reads_what_the_estimate_says(job: TrainingJob) -> None:
    answer = estimate(job)
    device = analyse(read_snapshot(predicted_snapshot(job))).devices[0]
    assert device.peak_allocated_bytes == answer.peak_allocated_bytes
    assert {k: v for k, v in device.buckets_at_peak.items() if v} == {
        k: v for k, v in answer.buckets_at_peak.items() if v
    }
    assert len(device.steps) == 3
    assert device.steps[-1].peak_phase == answer.peak_phase


def test_call_sites_are_ops_of_modules_and_alike_blocks_are_one() -> None:
    job = TrainingJob(config=_SMALL, micro_batch=2, sequence_length=512, device="h200")
    analysis = analyse(read_snapshot(predicted_snapshot(job)))
    sites = {site.site: site for site in analysis.devices[0].call_sites_at_peak}
    assert not [name for name in sites if ".py" in name or ": : " in name or "layers.0" in name]
    saved = sites["layers.*.mlp.up_proj.weight: parameter"]
    assert saved.blocks == _SMALL["num_hidden_layers"]
    assert folded(analysis.snapshot.stacks, saved.stack)[1].startswith("model: layers.")
    assert sum(site.bytes for site in sites.values()) == analysis.devices[0].peak_allocated_bytes


def test_an_op_of_the_block_itself_is_named_without_it() -> None:
    assert [short_op(op) for op in ("layers.0: add", "layers.11.mlp.act: tanh", "loss: cast")] == [
        "add",
        "mlp.act: tanh",
        "loss: cast",
    ]
