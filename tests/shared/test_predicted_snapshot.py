"""A predicted step saved as a snapshot: our viewer reads back what the estimate said."""

import pytest

from trainmem.estimate import estimate
from trainmem.job import Lora, Sharding, TrainingJob
from trainmem.predicted_snapshot import predicted_snapshot
from trainmem.snapshot.analysis import analyse
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
