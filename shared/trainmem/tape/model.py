"""A model as the tape sees it: its parameters by name, and linear layers with whatever the job puts around them."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from trainmem.tape import ops
from trainmem.tape.adapters import base_linear, lora_linear
from trainmem.tape.attention import Kernel
from trainmem.tape.core import Tape
from trainmem.tape.fully_sharded import ShardedGroup, Sharding, managed_order
from trainmem.tape.tensor import Tensor

__all__ = ["READ", "Block", "Model", "Structure"]

READ = frozenset(
    {
        "activation",
        "attention_soft_cap",
        "classifier_activation",
        "encoder",
        "experts_per_token",
        "final_norm",
        "logits_soft_cap",
        "normalized_routing",
        "parallel_residual",
        "pooling",
        "post_norm",
        "router_jitter",
    }
)
"""Keys of an architecture's ``extra`` that a forward pass asks for; models that differ in others share programs."""


@dataclass(frozen=True, slots=True)
class Structure:
    """All that decides the order of events but not their sizes; equal structures share one program."""

    family: str
    task: str
    layer_kinds: tuple[str, ...]
    parameters: tuple[tuple[str, tuple[str, ...]], ...]
    outside: tuple[str, ...]
    extra: tuple[tuple[str, Any], ...]
    grouped: bool
    tied: bool
    one_head: bool
    weight_itemsize: int
    autocast: int
    attention: str
    kernel: Kernel
    masked_kernel: Kernel
    pads_heads: bool
    checkpointing: str
    loss: str
    lora: frozenset[str] | None
    adapter_itemsize: int
    quantization: str
    quantized: frozenset[str]
    read_packed: frozenset[str]
    dropout: tuple[tuple[str, bool], ...]
    accumulating: bool
    scaled_loss: bool
    loss_scaling: bool
    windowed: bool = False
    partial_rotary: bool = False
    batch_of_one: bool = False
    input_gradients: bool = False
    segments: tuple[int, ...] = ()
    wide_gradients: bool = False
    many_rows: bool = False
    frequency_checks: int = 0
    grouped_products: str = "kernel"
    root: tuple[str, ...] = ()
    sharded: tuple[int, int, bool, bool, bool] | None = None

    @property
    def ones(self) -> frozenset[str]:
        """The names of dimensions that are one."""
        flags = {
            "b": self.batch_of_one,
            "kv": self.one_head,
            "heads": self.one_head and not self.grouped,
            "top_k": dict(self.extra).get("experts_per_token") == 1,
        }
        return frozenset(name for name, flag in flags.items() if flag)

    def unfused(self, *, masked: bool) -> bool:
        """Whether attention is a chain of products, whose gradients come contiguous over heads."""
        kernel = self.masked_kernel if masked else self.kernel
        return self.attention == "eager" or kernel == "math"

    def filled_up(self, *, masked: bool) -> bool:
        """Whether heads are filled up for a kernel; cutting gradients back leaves them contiguous over heads."""
        return self.attention == "sdpa" and self.pads_heads and not masked


class Block:
    """The parameters of one block, or of the model outside blocks (index -1), and its kind."""

    def __init__(self, model: Model, index: int, names: tuple[str, ...], kind: str = "") -> None:
        self.model = model
        self.index = index
        self.prefix = f"layers.{index}." if index >= 0 else ""
        self.kind = kind
        self.names = frozenset(names)
        self._tensors: dict[str, Tensor] = {}

    def weight(self, name: str) -> tuple[str, Tensor]:
        """(full name, tensor) of a parameter of this block."""
        full = self.prefix + name
        tensor = self._tensors.get(name)
        if tensor is None:
            model = self.model
            trainable = model.structure.lora is None
            tensor = model.tape.parameter(
                full, (f"p:{name}",), model.structure.weight_itemsize, trainable=trainable
            )
            self._tensors[name] = tensor
        return full, tensor

    def has(self, name: str) -> bool:
        """Whether the block has this parameter."""
        return name in self.names

    def linear(
        self, x: Tensor, name: str, features: str, *, conv1d: bool = False, flattens: bool = True
    ) -> Tensor:
        """A linear layer by its module name, with its adapter.

        ``conv1d``: GPT-2's, stored transposed. ``flattens``: the input is not rows of tokens already.
        """
        tape = self.model.tape
        with tape.module(name):
            if not self.adapted(name):
                return self._base(x, name, features, conv1d, flattens)
            a, b = self.adapter(f"{name}.lora_A.weight"), self.adapter(f"{name}.lora_B.weight")
            return lora_linear(
                tape, x, lambda: self._base(x, name, features, conv1d, flattens), a, b, "rank", features,
                flattens=flattens,
            )  # fmt: skip

    def adapted(self, name: str) -> bool:
        """Whether this layer has a LoRA adapter."""
        lora = self.model.structure.lora
        return lora is not None and f"{name}.weight" in lora

    def adapter(self, name: str) -> tuple[str, Tensor]:
        """(full name, tensor) of a trainable adapter matrix."""
        full = self.prefix + name
        tensor = self._tensors.get(name)
        if tensor is None:
            model = self.model
            tensor = model.tape.parameter(full, (f"p:{name}",), model.structure.adapter_itemsize)
            self._tensors[name] = tensor
        return full, tensor

    def _base(self, x: Tensor, name: str, features: str, conv1d: bool, flattens: bool) -> Tensor:
        tape, quantization = self.model.tape, self.model.structure.quantization
        bias = self.weight(f"{name}.bias") if self.has(f"{name}.bias") else None
        if conv1d and bias is not None:
            return ops.addmm(tape, x, self.weight(f"{name}.weight"), bias, features, transposed=False)
        if f"{name}.weight" in self.model.structure.quantized:
            original = self.model.structure.weight_itemsize
            fp16 = self.model.structure.loss_scaling
            packed = f"{name}.weight" in self.model.structure.read_packed
            return base_linear(
                tape, x, f"{name}.weight", features, quantization, bias, original, fp16=fp16, packed=packed
            )
        return ops.linear(tape, x, self.weight(f"{name}.weight"), features, bias, flattens=flattens)

    def layer_norm(self, x: Tensor, name: str) -> Tensor:
        """A LayerNorm by its module name."""
        weight = self.weight(f"{name}.weight") if self.has(f"{name}.weight") else None
        bias = self.weight(f"{name}.bias") if self.has(f"{name}.bias") else None
        with self.model.tape.module(name):
            return ops.layer_norm(self.model.tape, x, weight, bias)


@dataclass(slots=True)
class Model:
    """The tape, the structure and the parameters."""

    tape: Tape
    structure: Structure
    outside: Block = field(init=False)
    blocks: list[Block] = field(init=False)
    sharding: Sharding | None = field(init=False, default=None)
    _extra: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self._extra = dict(self.structure.extra)
        names = dict(self.structure.parameters)
        self.outside = Block(self, -1, self.structure.outside)
        self.blocks = [
            Block(self, index, names[kind], kind) for index, kind in enumerate(self.structure.layer_kinds)
        ]
        self.sharding = self._sharding(names)

    def _sharding(self, names: dict[str, tuple[str, ...]]) -> Sharding | None:
        """One group a block and one for the root, which comes last."""
        if self.structure.sharded is None:
            return None
        gather, reduce, casts, reshards, alone = self.structure.sharded
        groups = [
            ShardedGroup(f"layers.{index}.", managed_order(names[kind]))
            for index, kind in enumerate(self.structure.layer_kinds)
        ]
        root = ShardedGroup("", managed_order(self.structure.root))
        return Sharding(
            tape=self.tape,
            gather_itemsize=gather,
            reduce_itemsize=reduce,
            casts=casts,
            reshards=reshards,
            alone=alone,
            order=[*groups, root],
        )

    def segments(self) -> list[list[Block]]:
        """The blocks that are checkpointed as one."""
        ends = list(accumulate(self.structure.segments))
        return [
            self.blocks[end - size : end] for end, size in zip(ends, self.structure.segments, strict=True)
        ]

    def extra(self, key: str) -> Any:
        """An entry of the architecture's ``extra``; None when absent. Raises `KeyError` for a key not in `READ`."""
        if key not in READ:
            raise KeyError(key)
        return self._extra.get(key)

    def drops(self, where: str) -> float:
        """1.0 where dropout is active, else 0.0."""
        return 1.0 if dict(self.structure.dropout).get(where) else 0.0
