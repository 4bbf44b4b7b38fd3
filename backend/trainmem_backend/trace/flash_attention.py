"""The package flash-attn (FlashAttention 2) on a virtual GPU, for scripts that ask for it.

Its kernels are compiled for real GPUs, and few machines without one have it installed. A stand-in makes the tensors
that its two entry points make: see csrc/flash_attn/flash_api.cpp (`mha_fwd`, `mha_varlen_fwd`, `mha_bwd`,
`mha_varlen_bwd`) and flash_attn_interface.py, 2.7 and 2.8.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any
from unittest import mock

import torch

from trainmem_backend.trace.errors import TraceError
from trainmem_backend.trace.kernels.attention import key_splits
from trainmem_backend.trace.stand_ins import stand_in_or_note

__all__ = ["virtual_flash_attention"]

_VERSION = "2.8.3"
_WIDEST = 256
_IMPORTS = "transformers.utils.import_utils"
_CALLS = "transformers.modeling_flash_attention_utils"
_DISTRIBUTIONS = {"flash_attn": ["flash-attn"]}


class _Attention(torch.autograd.Function):
    """Heads of queries, keys and values, (b, s, h, d) or (tokens, h, d) where ``sequences`` says how many.

    Keeps its inputs, the result, an fp32 log-sum-exp for every query and head, and the state of the random numbers.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        sequences: int,
        splits: int,
        groups: int,
    ) -> torch.Tensor:
        """``splits`` of the keys leave partial results in fp32 until they are combined; ``groups``: see `backward`."""
        query, key, value = (_last_together(tensor) for tensor in (query, key, value))
        out = query.new_empty(query.shape)
        tokens, heads = query.shape[:-2], query.shape[-2]
        rows = (tokens[0], heads, tokens[1]) if not sequences else (heads, tokens[0])
        log_sum_exp = query.new_empty(rows, dtype=torch.float32)
        partial = []
        if splits > 1:
            partial = [
                query.new_empty((splits, *rows), dtype=torch.float32),
                query.new_empty((splits, *rows, _rounded_width(query.shape[-1])), dtype=torch.float32),
            ]
        state = query.new_empty(2, dtype=torch.int64)
        while partial:
            partial.pop()
        ctx.save_for_backward(query, key, value, out, log_sum_exp, state)
        ctx.sequences, ctx.groups = sequences, groups
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Three gradients; row sums and an fp32 accumulator of the queries' gradient, ``groups`` of them where the
        result is to be the same every time; with grouped heads those of keys and values for every query head first.
        """
        query, key, value, _out, _log_sum_exp, _state = ctx.saved_tensors
        gradient = _last_together(gradients[0])
        found = tuple(tensor.new_empty(tensor.shape) for tensor in (query, key, value))
        heads, width = query.shape[-2:]
        if ctx.sequences:
            rows: tuple[int, ...] = (query.shape[0] + 128 * ctx.sequences,)
            sums = query.new_empty((heads, *rows), dtype=torch.float32)
        else:
            rows = (query.shape[0], -(-query.shape[1] // 128) * 128)
            sums = query.new_empty((rows[0], heads, rows[1]), dtype=torch.float32)
        shape = (*rows, heads, _rounded_width(width))
        if ctx.groups:
            accumulator = query.new_zeros((ctx.groups, *shape), dtype=torch.float32)
        else:
            accumulator = query.new_empty(shape, dtype=torch.float32)
        if key.shape[-2] != heads:
            expanded = [query.new_empty((*key.shape[:-2], heads, width)) for _ in range(2)]
            for whole, gradient_of in zip(expanded, found[1:], strict=True):
                grouped = whole.view(*key.shape[:-1], heads // key.shape[-2], width)
                torch.sum(grouped, dim=-2, out=gradient_of)
                del grouped
            whole = None
            while expanded:
                expanded.pop()
        del accumulator, sums, gradient
        return (*found, None, None, None)


def _last_together(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _rounded_width(width: int) -> int:
    return -(-width // 32) * 32 if width <= 192 else _WIDEST


def _padded(tensor: torch.Tensor) -> torch.Tensor:
    """Heads in multiples of eight."""
    missing = -tensor.shape[-1] % 8
    return torch.nn.functional.pad(tensor, (0, missing)) if missing else tensor


class _Package:
    """The entry points, on a GPU of so many ``multiprocessors``."""

    def __init__(self, multiprocessors: int) -> None:
        self._multiprocessors = multiprocessors

    def flash_attn_func(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: torch.Tensor | None = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
    ) -> torch.Tensor:
        """Sequences of one length."""
        batch, length, heads, width = q.shape
        splits = 1
        if not dropout_p:
            splits = key_splits(batch * heads, length, k.shape[1], width, self._multiprocessors)
        return self._attend(q, k, v, 0, splits, batch * heads if deterministic else 0, return_attn_probs)

    def flash_attn_varlen_func(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_k: torch.Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: torch.Tensor | None = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
        block_table: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Sequences one after the other; keys are never split here."""
        sequences = cu_seqlens_q.numel() - 1
        blocks = sequences * q.shape[-2] if deterministic else 0
        return self._attend(q, k, v, sequences, 1, blocks, return_attn_probs)

    def flash_attn_with_kvcache(self, *_: Any, **__: Any) -> torch.Tensor:
        """Has no backward pass."""
        raise TraceError(
            "flash_attn_with_kvcache is for generation, which a trace of training does not replay"
        )

    def _attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        sequences: int,
        splits: int,
        blocks: int,
        wants_scores: bool,
    ) -> torch.Tensor:
        if query.dtype not in (torch.float16, torch.bfloat16):
            raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
        if query.shape[-1] > _WIDEST or wants_scores:
            what = "return_attn_probs" if wants_scores else f"heads of {query.shape[-1]}"
            raise TraceError(f"flash_attn: {what} is not replayed")
        groups = -(-self._multiprocessors // blocks) if blocks else 0
        width = query.shape[-1]
        out: torch.Tensor = _Attention.apply(  # type: ignore[no-untyped-call]
            *(_padded(tensor) for tensor in (query, key, value)), sequences, splits, groups
        )
        return out[..., :width]


@contextlib.contextmanager
def virtual_flash_attention(multiprocessors: int, note: Callable[[str], None]) -> Iterator[None]:
    """`import flash_attn`, and transformers' "flash_attention_2", find the stand-in inside; ``note`` is told of it."""
    before = {name: sys.modules.get(name) for name in ("flash_attn", "flash_attn.bert_padding")}
    package, padding = (_module(name) for name in before)
    entries = _Package(multiprocessors)

    def noted(call: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def called(*args: Any, **kwargs: Any) -> torch.Tensor:
            note(
                f"flash_attn: its tensors are laid down as release {_VERSION} makes them; no kernel of it ran"
            )
            return call(*args, **kwargs)

        # transformers reads from the signature what a release supports
        called.__dict__["__wrapped__"] = call
        return called

    for entry in (entries.flash_attn_func, entries.flash_attn_varlen_func, entries.flash_attn_with_kvcache):
        package.__dict__[entry.__name__] = noted(entry)
    package.__dict__["__version__"] = _VERSION
    with contextlib.ExitStack() as stack:
        stack.callback(_put_back, before)
        sys.modules.update({"flash_attn": package, "flash_attn.bert_padding": padding})
        if _IMPORTS in sys.modules:
            what = "transformers' flash_attention_2"
            stand_in_or_note(stack, _known_to_transformers(padding), what, note)
        yield


@contextlib.contextmanager
def _known_to_transformers(padding: ModuleType) -> Iterator[None]:
    """Transformers finds the package inside, and lets go of its functions at the end.

    It asks whether the module is there, and which distribution brings it: a dict in 5.17, filled when it is
    imported, a cached function from 5.23 on.
    """
    imports, calls = importlib.import_module(_IMPORTS), importlib.import_module(_CALLS)
    is_there, is_there_cached = imports._is_package_available, imports.is_flash_attn_2_available
    distributions: Any = getattr(imports, "_package_distribution_mapping", None)

    def is_available(name: str, return_version: bool = False) -> tuple[bool, str | None]:
        if name == "flash_attn":
            return True, _VERSION if return_version else None
        found: tuple[bool, str | None] = is_there(name, return_version)
        return found

    def known() -> dict[str, list[str]]:
        return {**distributions(), **_DISTRIBUTIONS}

    with contextlib.ExitStack() as stack:
        padding.__dict__.update(pad_input=calls._pad_input, unpad_input=calls._unpad_input)
        stack.callback(is_there_cached.cache_clear)
        stack.enter_context(mock.patch.object(imports, "_is_package_available", is_available))
        if distributions is None:
            stack.enter_context(mock.patch.dict(imports.PACKAGE_DISTRIBUTION_MAPPING, _DISTRIBUTIONS))
        else:
            stack.enter_context(mock.patch.object(imports, "_package_distribution_mapping", known))
        stack.enter_context(mock.patch.object(calls, "_loaded_implementation", None))
        is_there_cached.cache_clear()
        yield


def _module(name: str) -> ModuleType:
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    return module


def _put_back(before: dict[str, ModuleType | None]) -> None:
    for name, module in before.items():
        sys.modules.pop(name, None)
        if module is not None:
            sys.modules[name] = module
