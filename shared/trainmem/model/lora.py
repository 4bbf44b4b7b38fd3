"""Which weights get a LoRA adapter, as PEFT 0.21 decides it on transformers 5 models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from trainmem.job import JobError, Lora, _shown
from trainmem.model.architecture import Architecture, Parameter

__all__ = ["Adapter", "Adapters", "adapters"]

# PEFT still takes the names that experts and routers had as linear layers, and adapts the tensors that
# replaced them (peft/utils/transformers_weight_conversion.py, _MOE_TARGET_MODULE_MAPPING). Other families
# have no entry there, so that their experts stay without adapters.
_EXPERT_NAMES: Mapping[str, Mapping[str, str]] = {
    "mixtral": {
        "gate": "mlp.gate.weight",
        "w1": "mlp.experts.gate_up_proj",
        "w3": "mlp.experts.gate_up_proj",
        "w2": "mlp.experts.down_proj",
    },
    "qwen3_moe": {
        "gate": "mlp.gate.weight",
        "gate_proj": "mlp.experts.gate_up_proj",
        "up_proj": "mlp.experts.gate_up_proj",
        "down_proj": "mlp.experts.down_proj",
    },
}
_FUSED = "mlp.experts.gate_up_proj"
_INPUTS_FIRST = frozenset({"gpt2"})


@dataclass(frozen=True, slots=True)
class Adapter:
    """The two matrices beside one weight: A is (rank, inputs), B is (outputs, rank).

    ``parameter`` is the weight. Stacked experts get one pair of matrices whose ``rank`` is that of the job
    times the number of experts, and twice that where two projections were fused into one.
    """

    parameter: Parameter
    rank: int
    inputs: int
    outputs: int

    @property
    def shapes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """A, then B, in the order PEFT registers them."""
        return (self.rank, self.inputs), (self.outputs, self.rank)

    @property
    def numel(self) -> int:
        """Elements of both matrices."""
        return self.rank * (self.inputs + self.outputs)


@dataclass(frozen=True, kw_only=True, slots=True)
class Adapters:
    """Every adapter of a model, laid out as its `Architecture` is.

    ``unmatched`` are the targets that name nothing in this model; PEFT leaves them out without a word.
    """

    embeddings: tuple[Adapter, ...]
    blocks: Mapping[str, tuple[Adapter, ...]] = field(hash=False)
    final: tuple[Adapter, ...]
    head: tuple[Adapter, ...]
    layer_kinds: tuple[str, ...]
    unmatched: tuple[str, ...] = ()

    @property
    def parameter_count(self) -> int:
        """Parameters of all adapters: the sum of rank x (inputs + outputs) over the adapted weights."""
        per_kind = {kind: sum(a.numel for a in parts) for kind, parts in self.blocks.items()}
        outside = sum(a.numel for a in (*self.embeddings, *self.final, *self.head))
        return outside + sum(per_kind[kind] for kind in self.layer_kinds)


def adapters(architecture: Architecture, lora: Lora) -> Adapters:
    """The adapters that PEFT would add for ``lora``.

    "all-linear" is every linear layer but the output head. On Mixtral and Qwen3-MoE it also means the router
    and the experts, and an ordinary MLP in some of their blocks gets none, because PEFT moves the names of
    its layers to the experts.
    Leaves out the copy of the classification head that PEFT trains beside the adapters when it is told that
    the task is SEQ_CLS. Raises `JobError` when no target names anything.
    """
    chosen = _Chosen(architecture, lora)
    found = Adapters(
        embeddings=chosen.among(architecture.embeddings),
        blocks={kind: chosen.among(block) for kind, block in architecture.blocks.items()},
        final=chosen.among(architecture.final),
        head=chosen.among(architecture.head),
        layer_kinds=architecture.layer_kinds,
        unmatched=chosen.unmatched(),
    )
    if not found.parameter_count:
        raise JobError(
            f"lora.targets: {_shown(', '.join(lora.targets))} names no linear layer of this "
            f"{architecture.family}; allowed are all-linear or some of {', '.join(chosen.known_names())}"
        )
    return found


class _Chosen:
    """The targets of one job on one model: linear layers by name, experts by the names they used to have."""

    def __init__(self, architecture: Architecture, lora: Lora) -> None:
        self._architecture = architecture
        self._rank = lora.rank
        self._moved = _EXPERT_NAMES.get(architecture.family, {})
        self._every_linear = lora.targets == "all-linear"
        self._targets = () if isinstance(lora.targets, str) else lora.targets
        old_names = {
            old
            for old in self._moved
            if self._every_linear or any(_names(old, target) for target in self._targets)
        }
        self._expert_tensors = {self._moved[old] for old in old_names}
        fused = {old for old, new in self._moved.items() if new == _FUSED}
        if 0 < len(fused & old_names) < len(fused):
            given, needed = (", ".join(sorted(names)) for names in (fused & old_names, fused - old_names))
            raise JobError(f"lora.targets: {given} needs {needed} too; the experts keep them in one tensor")

    def among(self, parameters: Iterable[Parameter]) -> tuple[Adapter, ...]:
        """The adapters beside these parameters, in their order."""
        return tuple(self._adapter(p) for p in parameters if self._wants(p))

    def unmatched(self) -> tuple[str, ...]:
        """The targets that name neither a linear layer nor an expert."""
        modules = [_module(p) for p in _all_parts(self._architecture) if p.kind == "linear"]
        return tuple(
            target
            for target in self._targets
            if not any(_names(old, target) for old in self._moved)
            and not any(_names(target, module) for module in modules)
        )

    def known_names(self) -> tuple[str, ...]:
        """Short names of what could be adapted."""
        linear = (_module(p).rpartition(".")[2] for p in _all_parts(self._architecture) if p.kind == "linear")
        return tuple(dict.fromkeys((*linear, *self._moved)))

    def _wants(self, parameter: Parameter) -> bool:
        if parameter.name in self._expert_tensors:
            return True
        if parameter.kind != "linear":
            return False
        module = _module(parameter)
        if any(_names(old, module) for old in self._moved):
            return False
        return self._every_linear or any(_names(target, module) for target in self._targets)

    def _adapter(self, parameter: Parameter) -> Adapter:
        if len(parameter.shape) == 3:
            experts, outputs, inputs = parameter.shape
            projections = 2 if parameter.name == _FUSED else 1
            return Adapter(parameter, self._rank * experts * projections, inputs, outputs)
        outputs, inputs = parameter.shape
        if self._architecture.family in _INPUTS_FIRST:
            outputs, inputs = inputs, outputs
        return Adapter(parameter, self._rank, inputs, outputs)


def _all_parts(architecture: Architecture) -> tuple[Parameter, ...]:
    blocks = (parameter for block in architecture.blocks.values() for parameter in block)
    return (*architecture.embeddings, *blocks, *architecture.final, *architecture.head)


def _module(parameter: Parameter) -> str:
    return parameter.name.removesuffix(".weight")


def _names(target: str, module: str) -> bool:
    """PEFT's rule: the whole path of a module, or its end after a dot."""
    return module == target or module.endswith(f".{target}")
