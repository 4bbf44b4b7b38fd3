"""The model of a job: built from its config with random weights, adapters and checkpointing applied."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from trainmem.job import JobError, TrainingJob
from trainmem.model.catalogue import find
from trainmem.special_floats import untagged
from trainmem_backend.workload.checkpointing import apply_checkpointing
from trainmem_backend.workload.initialisation import drawn_in_place
from trainmem_backend.workload.quantization import CLASSIFIERS, quantize_base

__all__ = ["build_model", "model_config", "parameter_dtype", "with_adapters"]

_LABELS = 2
_FP32_PARAMETERS = ("fp32", "amp_bf16", "amp_fp16", "fsdp_mp_bf16")


def parameter_dtype(job: TrainingJob) -> torch.dtype:
    """The dtype in which the model's weights are created."""
    return torch.float32 if job.precision in _FP32_PARAMETERS else torch.bfloat16


def model_config(job: TrainingJob) -> dict[str, Any]:
    """The ``config.json`` of the job's model: its own, or the catalogue's."""
    values = dict(job.config if job.config is not None else find(str(job.model)).config)
    if "rope_parameters" in values and "initializer_range" in values:
        # transformers 5 writes every key, so where its file has no sliding_window a null was dropped.
        values.setdefault("sliding_window", None)
    return values


def build_model(job: TrainingJob, config: Mapping[str, Any], device: str) -> torch.nn.Module:
    """The model in training mode on ``device``."""
    model = _from_config(job, config, device)
    if job.base_quantization != "none":
        quantize_base(model, job.base_quantization, device)
    if job.lora is not None:
        model = with_adapters(job, model, device)
    apply_checkpointing(model, job)
    model.train()
    return model


def _from_config(job: TrainingJob, config: Mapping[str, Any], device: str) -> torch.nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

    values = untagged(
        {key: value for key, value in config.items() if key not in ("dtype", "torch_dtype", "auto_map")}
    )
    kind = values.pop("model_type", None)
    if kind is None:
        raise JobError("config: has no model_type, so its architecture is unknown")
    try:
        hf_config = AutoConfig.for_model(kind, **values)
    except ValueError as error:
        raise JobError(f"config.model_type: {kind!r} is not an architecture of this transformers") from error
    hf_config.use_cache = False
    auto = AutoModelForCausalLM
    if job.task == "sequence_classification":
        auto = AutoModelForSequenceClassification
        hf_config.num_labels = _LABELS
        if getattr(hf_config, "pad_token_id", None) is None:
            # Decoders pool the last token that is not padding; without an id only batches of one are allowed.
            hf_config.pad_token_id = 0
    if type(hf_config) not in auto._model_mapping:
        raise JobError(f"task: {job.task} has no {kind} model in transformers")
    if job.loss == "liger_fused":
        _fuse_loss(kind)
    # transformers has no fused attention for every model (gpt-oss' sinks); eager is what it would ask for.
    attention = job.attention
    if attention == "sdpa" and not auto._model_mapping[type(hf_config)]._supports_sdpa:
        attention = "eager"
    with torch.device(device), drawn_in_place():
        model: torch.nn.Module = auto.from_config(
            hf_config, dtype=parameter_dtype(job), attn_implementation=attention
        )
    return model


def _fuse_loss(model_type: str) -> None:
    """Liger's fused linear cross entropy, and none of its other kernels."""
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN

    apply = MODEL_TYPE_TO_APPLY_LIGER_FN.get(model_type)
    if apply is None:
        raise JobError(f"loss: liger_fused does not know {model_type}; use standard")
    others = dict.fromkeys(("rope", "rms_norm", "swiglu", "geglu", "layer_norm", "cross_entropy"), False)
    accepted = inspect.signature(apply).parameters
    apply(
        **{name: value for name, value in others.items() if name in accepted},
        fused_linear_cross_entropy=True,
    )


def with_adapters(job: TrainingJob, model: torch.nn.Module, device: str) -> torch.nn.Module:
    """The model with low-rank adapters on the layers that the job names, and only those trained."""
    from peft import LoraConfig, get_peft_model

    assert job.lora is not None
    targets = job.lora.targets if isinstance(job.lora.targets, str) else list(job.lora.targets)
    settings = LoraConfig(
        r=job.lora.rank,
        lora_alpha=2 * job.lora.rank,
        target_modules=targets,
        lora_dropout=0.0,
        # PEFT leaves out a language model's head by itself, a classifier's only where it is told the task
        exclude_modules=list(CLASSIFIERS) if job.task == "sequence_classification" else None,
    )
    adapted: torch.nn.Module = get_peft_model(model, settings)
    return adapted.to(device)
