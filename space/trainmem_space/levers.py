"""The levers of the form: labels, the line that says what each moves, and the way between form and job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from trainmem.given_json import parse_json
from trainmem.job import LEVERS, JobError, Offload, ShardingMode, TrainingJob

__all__ = ["FORM", "PASTED", "VALUE_WORDS", "Lever", "form_from_job", "job_from_form", "lever_of_error"]

PASTED = "pasted config.json"
"""What the model control shows while a config without a name is used."""

ALL_LINEAR = "all-linear"

VALUE_WORDS = {
    "causal_lm": "causal LM",
    "sequence_classification": "classification",
    "amp_bf16": "AMP bf16",
    "amp_fp16": "AMP fp16",
    "bf16": "pure bf16",
    "bf16_kahan": "pure bf16 with Kahan",
    "bf16_stochastic": "pure bf16, stochastic rounding",
    "bf16_master": "bf16 + fp32 master",
    "bf16_master_fp32_grads": "bf16 + fp32 master and gradients",
    "fsdp_mp_bf16": "FSDP2 mixed precision bf16",
    "adamw": "AdamW (foreach)",
    "adamw_fused": "AdamW fused",
    "adamw_loop": "AdamW loop",
    "adamw8bit": "AdamW 8-bit",
    "paged_adamw8bit": "AdamW 8-bit paged",
    "lion8bit": "Lion 8-bit",
    "sgd": "SGD",
    "sgd_momentum": "SGD with momentum",
    "adafactor": "Adafactor",
    "muon": "Muon",
    "sdpa": "fused (sdpa)",
    "sqrt": "√L",
    "liger_fused": "fused (Liger)",
    "nf4": "NF4",
    "ddp": "DDP",
    "zero1": "ZeRO-1",
    "zero2": "ZeRO-2",
    "zero3": "ZeRO-3",
    "fsdp2": "FSDP2",
    "cpu": "CPU",
    "nvme": "NVMe",
}
"""How the page writes the values of the levers that are choices, where it does not write them as they are."""

# The same word means different things to different levers.
_WORDS_OF_LEVER = {
    ("zero_grad", "none"): "set to None",
    ("zero_grad", "zeros"): "fill with zeros",
    ("base_quantization", "none"): "16/32-bit",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Lever:
    """One control of the form. ``field`` is its name in the job, dotted where it is inside a part."""

    key: str
    field: str
    label: str
    moves: str
    values: tuple[str, ...] | None = None

    @property
    def choices(self) -> list[tuple[str, str]]:
        """What a reader sees and what the job says, for a lever that is a choice."""
        return [
            (_WORDS_OF_LEVER.get((self.field, value)) or VALUE_WORDS.get(value, value), value)
            for value in self.values or ()
        ]


def _lever(field: str, label: str, moves: str, values: tuple[str, ...] | None = None) -> Lever:
    return Lever(
        key=field.replace(".", "_"), field=field, label=label, moves=moves, values=values or LEVERS.get(field)
    )


_ALL = (
    _lever("model", "Model", "Everything: parameters set the fixed cost, layers and width the activations."),
    _lever(
        "config",
        "config.json",
        "Everything, of any model: it wins over the name. A type that the tape does not know gets a sum alone.",
    ),
    _lever(
        "micro_batch",
        "Micro batch",
        "Activations and logits, in proportion. Not weights, gradients or states.",
    ),
    _lever(
        "sequence_length",
        "Sequence length",
        "Activations and logits, in proportion; eager attention's scores with its square.",
    ),
    _lever(
        "accumulation",
        "Accumulation",
        "The optimizer's batch, at no activation cost: only gradients live on between micro batches.",
    ),
    _lever(
        "precision",
        "Precision",
        "Bytes per parameter (weights, gradients, states, casts) and bytes per activation.",
    ),
    _lever(
        "optimizer", "Optimizer", "Optimizer state, and what the step allocates on the way (foreach copies)."
    ),
    _lever(
        "attention",
        "Attention",
        "Eager keeps batch x heads x length² scores for every layer; fused attention keeps none.",
    ),
    _lever(
        "checkpointing",
        "Checkpointing",
        "Activations: a block keeps its input and is run again in backward, about a third more compute.",
    ),
    _lever("loss", "Loss", "Logits: the fused loss never holds all of batch x length x vocabulary at once."),
    _lever(
        "zero_grad",
        "zero_grad",
        "Gradients between steps: zeros keep them all, None frees them until backward.",
    ),
    _lever("task", "Task", "The head: scores over the vocabulary, or two labels and almost no logits."),
    _lever(
        "lora",
        "LoRA",
        "Gradients and optimizer state: only the adapters have them. Weights and most activations stay.",
        ("off", "on"),
    ),
    _lever("lora.rank", "Rank", "Adapter parameters, in proportion; small beside the base."),
    _lever("lora.targets", "Adapted layers", "Adapter parameters, and the inputs they save for backward."),
    _lever(
        "base_quantization",
        "Base weights",
        "Frozen weights: NF4 is about half a byte a parameter, unpacked one layer at a time.",
    ),
    _lever(
        "sharding.mode",
        "Sharding",
        "Who holds what: ZeRO-1 splits states, ZeRO-2 gradients too, ZeRO-3 and FSDP2 weights too.",
        get_args(ShardingMode),
    ),
    _lever(
        "sharding.data_parallel",
        "Data parallel ranks",
        "The share of what is sharded; each rank has its own batch.",
    ),
    _lever(
        "sharding.tensor_parallel", "Tensor parallel ranks", "Splits every large matrix and its activations."
    ),
    _lever(
        "sharding.pipeline_parallel",
        "Pipeline stages",
        "Splits the layers; early stages hold several batches.",
    ),
    _lever(
        "sharding.reshard_after_forward",
        "Reshard after forward",
        "On: weights are gathered twice a step. Off: gathered weights stay until backward.",
    ),
    _lever(
        "sharding.offload",
        "Offload",
        "Moves optimizer state out of the device, at the price of the link's speed.",
        get_args(Offload),
    ),
    _lever("device", "Device", "The verdict: its memory is the limit, its kernels decide workspaces."),
)

FORM: dict[str, Lever] = {lever.key: lever for lever in _ALL}
"""Every lever by the name of its control, in the order of the form."""


def job_from_form(form: Mapping[str, Any]) -> TrainingJob:
    """The job that the controls describe. Raises `JobError`, also for a config that is not JSON.

    A config wins over a name. An emptied number is an error, not a default: the reader sees an empty field.
    """
    config = _config(form.get("config") or "")
    name = form.get("model") or None
    adapted = form.get("lora") == "on"
    data: dict[str, Any] = {
        "model": None if config is not None and name == PASTED else name,
        "config": config,
        "lora": {"rank": _filled(form["lora_rank"]), "targets": form["lora_targets"] or ALL_LINEAR}
        if adapted
        else None,
        "base_quantization": form["base_quantization"] if adapted else "none",
        "sharding": {
            lever.field.removeprefix("sharding."): _filled(form[key])
            for key, lever in FORM.items()
            if lever.field.startswith("sharding.")
        },
    }
    for key, lever in FORM.items():
        if "." not in lever.field and lever.field not in data and key != "lora":
            data[lever.field] = _filled(form[key])
    if data["sharding"]["mode"] == "none":
        data["sharding"] |= {"data_parallel": 1, "offload": "none"}
    return TrainingJob.from_json(data)


def form_from_job(job: TrainingJob) -> dict[str, Any]:
    """The value of every control for a job; the inverse of `job_from_form`."""
    data = job.to_json()
    lora = data["lora"] or {"rank": 16, "targets": ALL_LINEAR}
    targets = lora["targets"]
    form = {key: data[lever.field] for key, lever in FORM.items() if "." not in lever.field}
    form |= {f"sharding_{name}": value for name, value in data["sharding"].items()}
    form |= {
        "model": job.model or PASTED,
        "config": json.dumps(data["config"], indent=1) if data["config"] is not None else "",
        "lora": "on" if data["lora"] else "off",
        "lora_rank": lora["rank"],
        "lora_targets": targets if isinstance(targets, str) else ", ".join(targets),
    }
    return form


def lever_of_error(message: str) -> str | None:
    """The control that an error's first words name, so that the page can point at it."""
    field = message.partition(":")[0].strip().strip('"')
    exact = {lever.field: key for key, lever in FORM.items()}
    if field in exact:
        return exact[field]
    return next((key for name, key in exact.items() if field.startswith((f"{name} ", f"{name}."))), None)


def _filled(value: Any) -> Any:
    # The job takes null for "the default", but an empty control is not what its reader meant by a default.
    return "" if value is None else value


def _config(text: str) -> Any:
    if not text.strip():
        return None
    try:
        config = parse_json(text)
    except ValueError as error:
        raise JobError(f"config: {error}; paste the whole config.json") from None
    if config is None:  # which a job takes for no config
        raise JobError("config: null is not an object like a Hugging Face config.json")
    return config
