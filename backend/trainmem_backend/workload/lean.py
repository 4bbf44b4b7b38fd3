"""A quantised model built block by block, for models whose unpacked weights would not fit beside the
packed ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from trainmem.job import TrainingJob
from trainmem_backend.workload.checkpointing import apply_checkpointing, blocks_of
from trainmem_backend.workload.initialisation import drawn_in_place
from trainmem_backend.workload.model import build_model, with_adapters
from trainmem_backend.workload.quantization import quantize_base

__all__ = ["bare_model", "pack_by_block"]


def bare_model(job: TrainingJob, config: Mapping[str, Any]) -> nn.Module:
    """The job's model on the meta device: shapes without weights, nothing packed, no adapters."""
    return build_model(job.with_(base_quantization="none", lora=None, checkpointing="none"), config, "meta")


def pack_by_block(job: TrainingJob, model: Any, device: str) -> nn.Module:
    """The model of `build_model` from a `bare_model`, with one block unpacked at a time.

    Each block is given random weights on ``device`` and packed before the next is. What lives afterwards is
    the same; the most that lived on the way is one block.
    """
    for block in blocks_of(model, "base_quantization"):
        _fill(model, block, device)
        if job.base_quantization == "nf4":
            _pack(block, device)
        else:
            quantize_base(block, job.base_quantization, device)
    _fill(model, model, device)
    model.tie_weights()
    if job.lora is not None:
        model = with_adapters(job, model, device)
    apply_checkpointing(model, job)
    model.train()
    return model  # type: ignore[no-any-return]


def _pack(block: nn.Module, device: str) -> None:
    """NF4 in place of every linear layer, packed where the weight already is: at this size a way through the
    host's memory, or a throw-away layer drawn on the CPU, takes minutes.
    """
    import bitsandbytes as bnb

    for name, module in list(block.named_modules()):
        if type(module) is not nn.Linear:
            continue
        with torch.device("meta"):
            packed = bnb.nn.Linear4bit(
                module.in_features,
                module.out_features,
                bias=False,
                compute_dtype=torch.bfloat16,
                compress_statistics=True,
                quant_type="nf4",
            )
        packed.bias = module.bias
        weight = bnb.nn.Params4bit(
            module.weight.data, requires_grad=False, compress_statistics=True, quant_type="nf4"
        )
        packed.weight = weight.to(device)
        parent, _, leaf = name.rpartition(".")
        setattr(block.get_submodule(parent), leaf, packed)


def _fill(model: Any, part: nn.Module, device: str) -> None:
    """Random weights, as the model's own class draws them, wherever a tensor is still on the meta device."""
    for module in part.modules():
        own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        if any(tensor.is_meta for tensor in own):
            module.to_empty(device=torch.device(device), recurse=False)
            with torch.no_grad(), drawn_in_place():
                model._init_weights(module)
