"""The command that an answer names is the job: read back, it is the same one."""

from __future__ import annotations

import argparse
import shlex

import pytest

from trainmem.cli import trace
from trainmem.cli.jobs import job_from_arguments
from trainmem.estimate import estimate
from trainmem.job import Lora, Sharding, TrainingJob
from trainmem.trace_command import trace_command, untraceable

JOBS = [
    TrainingJob(model="gpt2-124m"),
    TrainingJob(model="llama3.2-1b", micro_batch=4, sequence_length=2048, accumulation=2, device="h200"),
    TrainingJob(model="gpt2-124m", lora=Lora(rank=8), base_quantization="nf4", optimizer="paged_adamw8bit"),
    TrainingJob(model="llama3.2-1b", lora=Lora(rank=4, targets=("q_proj", "v_proj"))),
    TrainingJob(
        model="llama3.2-1b",
        precision="fsdp_mp_bf16",
        sharding=Sharding(mode="fsdp2", data_parallel=8, reshard_after_forward=False, offload="cpu"),
    ),
]


def parsed(command: str) -> TrainingJob:
    name, verb, *flags = shlex.split(command)
    assert (name, verb) == ("trainmem", "trace")
    parser = argparse.ArgumentParser()
    trace.add_parser(parser.add_subparsers())
    return job_from_arguments(parser.parse_args(["trace", *flags]))


@pytest.mark.parametrize("job", JOBS)
def test_the_command_read_back_is_the_job(job: TrainingJob) -> None:
    assert parsed(trace_command(job)) == job


def test_a_config_is_named_by_its_file_or_by_the_id_it_was_fetched_with() -> None:
    config = {"model_type": "mystery"}
    assert trace_command(TrainingJob(config=config)) == "trainmem trace --model config.json"
    fetched = TrainingJob(model="owner/name", config=config)
    assert trace_command(fetched) == "trainmem trace --model owner/name"


@pytest.mark.parametrize(
    ("sharding", "named"),
    [
        (Sharding(mode="zero3", data_parallel=8), "sharding.mode: zero3"),
        (Sharding(tensor_parallel=2), "sharding.tensor_parallel"),
        (Sharding(mode="ddp", data_parallel=2, pipeline_parallel=2), "sharding.pipeline_parallel"),
        (Sharding(mode="fsdp2", data_parallel=2, offload="nvme"), "sharding.offload"),
        (Sharding(offload="cpu"), "sharding.offload"),
    ],
)
def test_no_command_is_named_for_what_the_trace_would_leave_out(sharding: Sharding, named: str) -> None:
    job = TrainingJob(model="gpt2-124m", sharding=sharding)
    assert str(untraceable(job)).startswith(named)
    told = " ".join(estimate(job).warnings)
    assert "Nothing here replays that yet" in told
    assert "trainmem trace" not in told
