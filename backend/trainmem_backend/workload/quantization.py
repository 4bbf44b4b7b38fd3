"""Packed base weights: bitsandbytes' 4-bit and 8-bit linear layers in place of the model's own."""

from __future__ import annotations

from typing import Any

import torch

from trainmem.job import BaseQuantization

__all__ = ["CLASSIFIERS", "quantize_base"]

CLASSIFIERS = ("score", "classifier")
"""What transformers calls a classifier's last layer."""


def _names(model: torch.nn.Module) -> list[str]:
    """The linear layers but the head: a language model's output embedding, or a classifier's last layer."""
    output_embeddings: Any = getattr(model, "get_output_embeddings", None)
    head = output_embeddings() if output_embeddings is not None else None
    return [
        name
        for name, module in model.named_modules()
        if type(module) is torch.nn.Linear
        and module is not head
        and name.rpartition(".")[2] not in CLASSIFIERS
    ]


def quantize_base(model: torch.nn.Module, kind: BaseQuantization, device: str) -> None:
    """Replace every linear layer but the head, one at a time, as loading a quantised checkpoint does.

    Only names are listed: a list of the layers would keep all of them beside their packed successors.
    """
    import bitsandbytes as bnb

    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()
    for name in _names(model):
        module: Any = model.get_submodule(name)
        bias = module.bias is not None
        weight = module.weight.data.cpu()
        if kind == "nf4":
            packed: torch.nn.Module = bnb.nn.Linear4bit(
                module.in_features,
                module.out_features,
                bias=bias,
                compute_dtype=torch.bfloat16,
                compress_statistics=True,
                quant_type="nf4",
            )
            packed.weight = bnb.nn.Params4bit(
                weight, requires_grad=False, compress_statistics=True, quant_type="nf4"
            )
        else:
            packed = bnb.nn.Linear8bitLt(
                module.in_features, module.out_features, bias=bias, has_fp16_weights=False
            )
            packed.weight = bnb.nn.Int8Params(weight, requires_grad=False, has_fp16_weights=False)
        if bias:
            packed.bias = torch.nn.Parameter(module.bias.data.cpu(), requires_grad=False)
        parent, _, leaf = name.rpartition(".")
        owner = model.get_submodule(parent)
        delattr(owner, leaf)
        del module, weight
        setattr(owner, leaf, packed.to(device))
