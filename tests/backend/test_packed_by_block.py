"""A base too large for its device before it is packed: the tape and the trace pack it block by block."""

from __future__ import annotations

import pytest

from trainmem.job import Lora, TrainingJob
from trainmem.model import resolve
from trainmem.recording import counters, read_step
from trainmem.tape import record
from trainmem.tape.packing import packed_by_block

pytestmark = pytest.mark.torch

_WIDE = {
    "model_type": "qwen2",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 7,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
}


@pytest.mark.parametrize("quantization", ["nf4", "int8"])
def test_the_tape_packs_as_the_trace_does(quantization: str) -> None:
    from trainmem_backend.trace import trace

    job = TrainingJob(
        config=_WIDE,
        micro_batch=1,
        sequence_length=64,
        precision="bf16",
        lora=Lora(rank=8),
        base_quantization=quantization,  # type: ignore[arg-type]
        device="l4",
    )
    architecture = resolve(job).architecture
    assert packed_by_block(job, architecture.parameter_count)
    assert not packed_by_block(job.with_(device="h200"), architecture.parameter_count)
    found = []
    for recording in (record(job, architecture), trace(job)):
        start = next(mark.event for mark in recording.marks if mark.step == 1)
        sizes = [event for event in recording.events[:start] if event > 0]
        found.append((sizes, recording.empty_cache_before, read_step(recording, counters(recording), 3)))
    assert found[0][:2] == found[1][:2]
    assert found[0][2].peak_allocated_bytes == found[1][2].peak_allocated_bytes
