"""Liger's fused linear cross entropy on a virtual GPU.

Its Triton kernels cannot run on fake tensors, so a stand-in makes the tensors that
`liger_kernel.ops.fused_linear_cross_entropy` (0.6) makes around them: the loss is computed chunk by chunk of
tokens, each chunk's logits are overwritten by their gradient, and the gradients of the hidden states and of
the head's weight are ready when forward ends.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any
from unittest import mock

import torch

__all__ = ["FusedLinearCrossEntropy", "virtual_liger"]

_IGNORED = -100
_FUSED_MODELS = """
exaone4 falcon_h1 gemma gemma2 gemma3_text glm4 glm4_moe gpt_oss granite hunyuan_v1_dense llama llama4_text
mistral ministral mixtral olmo2 olmo3 phi3 qwen2 qwen3 qwen3_moe qwen3_next smollm3
"""
"""Model types whose loss `liger_kernel.transformers.monkey_patch` can fuse."""


def _chunk_rows(tokens: int, hidden: int, vocabulary: int) -> int:
    """Tokens of a chunk: so many that its logits are about as large as the hidden states, a power of two or all."""
    parts = -(-vocabulary // hidden)
    return min(1 << (-(-tokens // parts) - 1).bit_length(), tokens)


class FusedLinearCrossEntropy(torch.autograd.Function):
    """The loss of a linear head over all tokens, with its gradients made in forward."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The mean loss."""
        tokens, width = hidden.shape
        rows = _chunk_rows(tokens, width, weight.shape[0])
        grad_hidden = torch.zeros_like(hidden)
        grad_weight = torch.zeros_like(weight) if weight.requires_grad else None
        losses = torch.zeros(tokens, dtype=torch.float32, device=hidden.device)
        counted = target != _IGNORED
        counted.sum().item()
        # Without autocast every product has the dtypes of its inputs, so one buffer of logits serves all chunks.
        buffer = None
        if not torch.is_autocast_enabled("cuda"):
            buffer = torch.empty(rows, weight.shape[0], dtype=hidden.dtype, device=hidden.device)
        for start in range(0, tokens, rows):
            chunk = hidden[start : start + rows]
            if buffer is not None:
                logits = torch.mm(chunk, weight.t(), out=buffer[: len(chunk)])
                torch.mm(logits, weight, out=grad_hidden[start : start + rows])
            else:
                logits = chunk @ weight.t()
                grad_hidden[start : start + rows] = logits @ weight
            if grad_weight is not None:
                # The third product is added to the gradient as it is made, which needs no memory of its own.
                chunk.to(logits.dtype)
            del logits, chunk
        del buffer
        loss = torch.sum(losses)
        ctx.save_for_backward(grad_hidden.detach(), None if grad_weight is None else grad_weight.detach())
        return loss

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """The gradients of forward; they are scaled in place where the loss's own gradient is not 1."""
        grad_hidden, grad_weight = ctx.saved_tensors
        torch.equal(grad_outputs[0], torch.tensor(1.0, device=grad_outputs[0].device))
        return grad_hidden, grad_weight, None


def _loss(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, width: int) -> torch.Tensor:
    labels = torch.nn.functional.pad(labels, (0, 1), value=_IGNORED)
    shifted = labels[..., 1:].contiguous()
    hidden = hidden.view(-1, width)
    shifted = shifted.view(-1)
    loss: torch.Tensor = FusedLinearCrossEntropy.apply(hidden, weight, shifted)  # type: ignore[no-untyped-call]
    return loss


def _forward(self: Any, input_ids: torch.Tensor | None = None, labels: Any = None, **options: Any) -> Any:
    """A causal language model's forward that never makes all logits."""
    from transformers.modeling_outputs import CausalLMOutputWithPast

    outputs = self.model(input_ids=input_ids, **options)
    hidden_states = outputs[0]
    kept = hidden_states[:, slice(0, None), :]
    if labels is None:
        return CausalLMOutputWithPast(logits=self.lm_head(kept))
    return CausalLMOutputWithPast(loss=_loss(kept, self.lm_head.weight, labels, self.config.hidden_size))


class FusedLinearCrossEntropyLoss(torch.nn.Module):
    """`liger_kernel.transformers.LigerFusedLinearCrossEntropyLoss`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, weight: torch.Tensor, hidden: torch.Tensor, target: torch.Tensor, *rest: Any) -> Any:
        """The mean loss."""
        return FusedLinearCrossEntropy.apply(hidden, weight, target)  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def virtual_liger() -> Iterator[None]:
    """`import liger_kernel` finds the stand-in inside; patched model classes are restored at the end."""
    from transformers import AutoModelForCausalLM

    with contextlib.ExitStack() as stack:

        def fuser(model_type: str) -> Callable[..., None]:
            def apply(**options: Any) -> None:
                for config, model in AutoModelForCausalLM._model_mapping.items():
                    if config.model_type == model_type:
                        stack.enter_context(mock.patch.object(model, "forward", _forward))

            return apply

        package, transformers_part = ModuleType("liger_kernel"), ModuleType("liger_kernel.transformers")
        patches = ModuleType("liger_kernel.transformers.monkey_patch")
        package.__dict__["transformers"] = transformers_part
        transformers_part.__dict__["monkey_patch"] = patches
        transformers_part.__dict__["LigerFusedLinearCrossEntropyLoss"] = FusedLinearCrossEntropyLoss
        patches.__dict__["MODEL_TYPE_TO_APPLY_LIGER_FN"] = {
            name: fuser(name) for name in _FUSED_MODELS.split()
        }
        for module in (package, transformers_part, patches):
            module.__spec__ = ModuleSpec(module.__name__, None)
            stack.callback(_restore_module, module.__name__, sys.modules.get(module.__name__))
            sys.modules[module.__name__] = module
        yield


def _restore_module(name: str, module: ModuleType | None) -> None:
    """Not `mock.patch.dict`: that would also forget every module imported in between."""
    if module is None:
        del sys.modules[name]
    else:
        sys.modules[name] = module
