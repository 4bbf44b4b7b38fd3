"""Packed base weights: bitsandbytes' 4-bit and 8-bit linear layers in place of the model's own."""

from __future__ import annotations

import torch

from trainmem.job import BaseQuantization

__all__ = ["quantize_base"]

_KEPT_IN_FULL = ("lm_head", "score", "classifier", "embed_out")


def quantize_base(model: torch.nn.Module, kind: BaseQuantization, device: str) -> None:
    """Replace every linear layer but the head, one at a time, as loading a quantised checkpoint does."""
    import bitsandbytes as bnb

    for name, module in list(model.named_modules()):
        if type(module) is not torch.nn.Linear or name.rpartition(".")[2] in _KEPT_IN_FULL:
            continue
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
