"""A job, and a change of a job, as flags: the command line reads them back."""

import argparse
import shlex

import pytest

from trainmem.cli.jobs import add_job_arguments, job_from_arguments
from trainmem.flags import changed_flags, job_command
from trainmem.job import JobError, Lora, Sharding, TrainingJob
from trainmem.levers import ALL_LEVERS

JOB = TrainingJob(
    model="gpt2-774m",
    micro_batch=8,
    sequence_length=512,
    attention="eager",
    zero_grad="zeros",
    device="rtx-4090",
)
JOBS = (
    JOB,
    JOB.with_(micro_batch=2, checkpointing="sqrt", optimizer="sgd"),
    JOB.with_(lora=Lora(rank=4, targets=("c_attn", "c_proj"))),
    JOB.with_(sharding=Sharding(mode="fsdp2", data_parallel=4, reshard_after_forward=False)),
    JOB.with_(sharding=Sharding(mode="zero2", offload="cpu")),
)


def _read(words):
    parser = argparse.ArgumentParser()
    add_job_arguments(parser)
    return job_from_arguments(parser.parse_args(words))


@pytest.mark.parametrize("job", JOBS)
def test_a_command_says_its_job(job):
    trainmem, estimate, *flags = shlex.split(job_command("estimate", job))
    assert (trainmem, estimate) == ("trainmem", "estimate")
    assert _read(flags) == job


@pytest.mark.parametrize("lever", ALL_LEVERS, ids=lambda lever: lever.key)
@pytest.mark.parametrize("job", JOBS)
def test_a_lever_s_flags_after_the_job_s_pull_it(job, lever):
    try:
        changed = lever.pull(job)
    except JobError:
        changed = None
    if changed is None:
        return
    flags = changed_flags(job, changed)
    assert flags
    words = shlex.split(job_command("estimate", job))[2:] + shlex.split(flags)
    assert _read(words) == changed


def test_flags_say_no_more_than_what_changes():
    assert changed_flags(JOB, JOB) == ""
    assert changed_flags(JOB, JOB.with_(attention="sdpa")) == "--attention sdpa"
    assert changed_flags(JOB, JOB.with_(lora=Lora(), precision="bf16")) == "--precision bf16 --lora-rank 16"
