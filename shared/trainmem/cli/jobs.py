"""Jobs from the command line: one from flags, many from a file of JSON lines."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, get_args

from trainmem.given_json import parse_json
from trainmem.hub import fetch_config, is_hub_id
from trainmem.job import LEVERS, JobError, Offload, ShardingMode, TrainingJob
from trainmem.model.catalogue import is_known
from trainmem.trace_command import trace_command

__all__ = [
    "add_job_arguments",
    "flags_of",
    "given_flags",
    "job_from_arguments",
    "jobs_from_file",
    "with_the_file",
]

_WHOLE = ("micro_batch", "sequence_length", "accumulation")
_HELP = {
    "micro_batch": "sequences that go through the model at once",
    "sequence_length": "tokens of each of them",
    "accumulation": "micro batches before the optimizer steps",
    "task": "the head: scores over the vocabulary, or two labels",
    "precision": "dtypes of weights, gradients, state and activations",
    "optimizer": "what is kept for each parameter between steps",
    "attention": "a fused kernel, or scores kept for backward",
    "checkpointing": "which blocks keep only their input and run again in backward",
    "loss": "liger_fused never holds all logits at once",
    "zero_grad": "what stands between steps: no gradients, or zeros",
    "base_quantization": "how the frozen base is stored; needs --lora-rank",
}
_LONGEST_LINE = 4_000_000
_SHORT = {"micro_batch": ["-b"], "sequence_length": ["-s"]}


def add_job_arguments(parser: argparse.ArgumentParser) -> None:
    """Every lever as a flag; values are checked by `TrainingJob`, which names the field."""
    plain = TrainingJob(model="any").to_json()
    shown = ", ".join(f"{name} {plain[name]}" for name in (*_WHOLE, *LEVERS, "device"))
    parser.epilog = f"{parser.epilog}; defaults: {shown}" if parser.epilog else f"defaults: {shown}"
    parser.add_argument(
        "--model",
        "-m",
        help="a catalogue name, a Hugging Face id (outside the catalogue its config.json is fetched), or a path to one",
    )
    for name in _WHOLE:
        flags = (*_SHORT.get(name, []), f"--{name.replace('_', '-')}")
        parser.add_argument(*flags, dest=name, metavar="N", help=_HELP[name])
    for name, allowed in LEVERS.items():
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, dest=name, metavar="|".join(allowed), help=_HELP[name])
    # --lora alone would be ambiguous, and means the rank to most
    parser.add_argument("--lora-rank", "--lora", metavar="N", help="train adapters of this rank")
    parser.add_argument("--lora-targets", metavar="NAMES", help='"all-linear", or layer names with commas')
    modes = "|".join(get_args(ShardingMode))
    parser.add_argument("--sharding", metavar=modes, help="how ranks share what is not activations")
    parser.add_argument("--data-parallel", metavar="N", help="ranks, each with a micro batch of its own")
    parser.add_argument("--tensor-parallel", metavar="N", help="ranks that split every large matrix")
    parser.add_argument("--pipeline-parallel", metavar="N", help="stages that split the layers")
    parser.add_argument(
        "--no-reshard-after-forward", action="store_true", help="keep gathered weights until backward (fsdp2)"
    )
    parser.add_argument("--offload", metavar="|".join(get_args(Offload)), help="where optimizer state goes")
    parser.add_argument("--device", "-d", help="a device (`trainmem devices`)")


def job_from_arguments(args: argparse.Namespace) -> TrainingJob:
    """The job that the flags describe."""
    data: dict[str, Any] = {}
    if args.model is not None:
        path = Path(args.model)
        if _is_file(path / "config.json"):
            path = path / "config.json"
        if path.suffix == ".json" or _is_file(path):
            data["config"] = _read_config(path)
        else:
            data["model"] = args.model
            if is_hub_id(args.model) and not is_known(args.model):
                data["config"] = fetch_config(args.model)
    for name in (*_WHOLE, *LEVERS, "device"):
        value = getattr(args, name)
        if value is not None:
            data[name] = value
    if args.lora_rank is not None or args.lora_targets is not None:
        data["lora"] = {"rank": args.lora_rank, "targets": args.lora_targets}
    sharding: dict[str, Any] = {
        "mode": args.sharding,
        "data_parallel": args.data_parallel,
        "tensor_parallel": args.tensor_parallel,
        "pipeline_parallel": args.pipeline_parallel,
        "offload": args.offload,
    }
    if args.no_reshard_after_forward:
        sharding["reshard_after_forward"] = False
    if any(value is not None for value in sharding.values()):
        data["sharding"] = sharding
    return TrainingJob.from_json(data)


_OF_ADAPTERS_AND_RANKS = (
    "lora_rank",
    "lora_targets",
    "sharding",
    "data_parallel",
    "tensor_parallel",
    "pipeline_parallel",
    "offload",
)


def flags_of(args: argparse.Namespace) -> str:
    """The job's flags as they were given, to follow another command."""
    return " ".join(shlex.join(words) for words in given_flags(args).values())


def given_flags(args: argparse.Namespace) -> dict[str, list[str]]:
    """By the name that each has in ``args``, the job's flags as they were given."""
    said: dict[str, list[str]] = {}
    for name in ("model", *_WHOLE, *LEVERS, *_OF_ADAPTERS_AND_RANKS, "device"):
        value = getattr(args, name)
        if value is not None:
            said[name] = [*_SHORT.get(name, [f"--{name.replace('_', '-')}"]), str(value)]
    if args.no_reshard_after_forward:
        said["no_reshard_after_forward"] = ["--no-reshard-after-forward"]
    return said


def with_the_file(text: str, job: TrainingJob, args: argparse.Namespace) -> str:
    """``text`` with the trace's command naming the file that was given: a job carries its config, not the path."""
    return text.replace(trace_command(job), trace_command(job, str(args.model)))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # longer than a name may be, or with a NUL in it
        return False


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise JobError(f"model: {path.name} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise JobError(f"model: {path.name} is not text in UTF-8; give a Hugging Face config.json") from error
    except ValueError as error:
        raise JobError(f"model: {path.name} is {error}; give a Hugging Face config.json") from error
    if not isinstance(config, dict):
        raise JobError(f"model: {path.name} is not a JSON object like a Hugging Face config.json")
    return config


def jobs_from_file(path: str) -> Iterator[TrainingJob | JobError]:
    """One job a line, or the reason why a line is none; blank lines are skipped."""
    try:
        source = open(path, encoding="utf-8-sig", errors="replace")  # noqa: SIM115
    except OSError as error:
        raise ValueError(f"jobs: {path[:60]} cannot be read: {error.strerror}") from error
    with source as lines:
        for number, line in enumerate(iter(partial(lines.readline, _LONGEST_LINE + 1), ""), 1):
            if len(line) > _LONGEST_LINE:  # the file may be a device, which has no end either
                yield JobError(
                    f"line {number}: more than {_LONGEST_LINE:,} characters, and is the last one read"
                )
                return
            if not line.strip():
                continue
            try:
                data = parse_json(line, unique_keys=True)
            except ValueError as error:
                yield JobError(f"line {number}: {error}")
                continue
            try:
                yield TrainingJob.from_json(data)
            except JobError as error:
                yield error
