"""Activation checkpointing: every block, segments of blocks, or blocks that keep their matrix products."""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from trainmem.job import JobError, TrainingJob

__all__ = ["apply_checkpointing", "blocks_of", "kept_ops"]


def apply_checkpointing(model: Any, job: TrainingJob) -> None:
    """Checkpoint as the job says.

    ``full`` is transformers' own: every block, ``use_reentrant=False``. ``selective`` is the same with a
    policy that keeps the outputs of matrix products and of fused attention and computes the rest again.
    ``sqrt`` checkpoints segments of ceil(sqrt(L)) blocks as one (Chen et al. 2016, section 4).
    """
    if job.checkpointing == "none":
        return
    if job.checkpointing == "sqrt":
        _checkpoint_segments(model)
    else:
        options: dict[str, Any] = {"use_reentrant": False}
        if job.checkpointing == "selective":
            options["context_fn"] = partial(create_selective_checkpoint_contexts, kept_ops())
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
    if job.lora is not None:
        model.enable_input_require_grads()


def kept_ops() -> list[Any]:
    """What ``selective`` keeps: matrix products and fused attention, the ops that are slow to repeat."""
    aten = torch.ops.aten
    return [
        aten.mm.default,
        aten.addmm.default,
        aten.bmm.default,
        aten._scaled_dot_product_cudnn_attention.default,
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_efficient_attention.default,
    ]


def blocks_of(model: torch.nn.Module, lever: str = "checkpointing") -> list[torch.nn.Module]:
    """The model's blocks in order: the longest list of modules that transformers can checkpoint.

    Raises `JobError` naming the ``lever`` that needs them where there is none.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    stacks = [
        list(module)
        for module in model.modules()
        if isinstance(module, torch.nn.ModuleList)
        and len(module) > 0
        and all(isinstance(child, GradientCheckpointingLayer) for child in module)
    ]
    if not stacks:
        raise JobError(f"{lever}: {type(model).__name__} has no list of blocks to take one by one")
    return max(stacks, key=len)


class _Segment:
    """Blocks that run as one under a checkpoint.

    The model calls its blocks one by one, each on the last one's result: all but the segment's last note
    their arguments and pass the input on, in a tuple where blocks answer one, and the last runs them all.
    """

    def __init__(self, blocks: list[torch.nn.Module]) -> None:
        self.forwards = [block.forward for block in blocks]
        self.beside = tuple_length(type(blocks[0]).forward) - 1
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        for position, block in enumerate(blocks):
            last = position == len(blocks) - 1
            block.forward = self._run if last else self._note

    def _note(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        self.calls.append((args, kwargs))
        return hidden_states if self.beside < 0 else (hidden_states, *[None] * self.beside)

    def _run(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        calls = [*self.calls, (args, kwargs)]
        self.calls.clear()

        def chain(hidden: Any) -> Any:
            for forward, (rest, options) in zip(self.forwards, calls, strict=True):
                hidden = forward(hidden[0] if isinstance(hidden, tuple) else hidden, *rest, **options)
            return hidden

        return checkpoint(chain, hidden_states, use_reentrant=False)


def tuple_length(forward: Callable[..., Any]) -> int:
    """How many values a block answers in a tuple, 0 where it answers a tensor.

    Read off its source: transformers annotates most blocks as answering tuples whatever they do.
    """
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(forward))))
    tuples = {
        ast.unparse(target): node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(node.value, ast.Tuple) and isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Return) and node.value is not None:
            value = node.value
            if isinstance(value, ast.BinOp):
                value = value.left
            value = tuples.get(ast.unparse(value), value)
            if isinstance(value, ast.Tuple):
                return len(value.elts)
    return 0


def _checkpoint_segments(model: torch.nn.Module) -> None:
    blocks = blocks_of(model)
    size = math.ceil(math.sqrt(len(blocks)))
    for start in range(0, len(blocks), size):
        _Segment(blocks[start : start + size])
