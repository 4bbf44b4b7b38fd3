"""A rule says which allocations one CUDA kernel makes, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch

from trainmem_backend.trace.answers import Answers
from trainmem_backend.trace.fakes import FakeKernels
from trainmem_backend.trace.gpu import GpuTraits
from trainmem_backend.trace.recorder import Recorder

__all__ = ["KernelCall", "Rule", "rule", "rule_for", "tensors_in"]


def tensors_in(values: Iterable[Any]) -> list[torch.Tensor]:
    """The tensors among arguments or results, lists of tensors opened."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found.extend(tensors_in(value))
    return found


class Mode(Protocol):
    """What a call needs of the mode that records it."""

    recorder: Recorder
    traits: GpuTraits
    workspaces: set[tuple[str, bool]]
    fakes: FakeKernels
    answers: Answers


class KernelCall:
    """One call of an op whose inputs or outputs are on the device.

    `result` runs the fake kernel; it records nothing, so a rule decides the order of what it records.
    """

    __slots__ = ("answers", "args", "fakes", "func", "kwargs", "recorder", "traits", "workspaces")

    def __init__(self, mode: Mode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.recorder, self.traits, self.workspaces = mode.recorder, mode.traits, mode.workspaces
        self.fakes, self.answers = mode.fakes, mode.answers
        self.func, self.args, self.kwargs = func, args, kwargs

    def result(self) -> Any:
        """Run the op on fake tensors."""
        return self.fakes.run(self.func, self.args, self.kwargs)

    def outputs(self, result: Any) -> Any:
        """Record the new storages among the results, in order; answers the result."""
        if isinstance(result, torch.Tensor):
            self.recorder.watch(result)
        elif isinstance(result, list | tuple):
            for tensor in tensors_in(result):
                self.recorder.watch(tensor)
        return result

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by position or by name."""
        if len(self.args) > position:
            return self.args[position]
        return self.kwargs.get(name, default)

    def named(self, name: str) -> Any:
        """An argument by the name that the op's schema gives it."""
        for position, declared in enumerate(self.func._schema.arguments):
            if declared.name == name:
                return self.argument(position, name, declared.default_value)
        raise KeyError(name)

    @property
    def in_backward_thread(self) -> bool:
        """Whether the autograd engine's device thread would run this: it has library handles of its own."""
        return torch._C._current_graph_task_id() != -1

    def written_into_zeros(self, result: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Record the result of writing values into ``target`` out of place.

        Formulas of gradients write into zeros of their own in place, except for tensor subclasses, fake ones
        included (areAnyTensorSubclassLike in FunctionsManual.cpp): the result takes over the zeros' memory.
        """
        recorder = self.recorder
        number = recorder.number_of(target)
        is_zeros = number >= 0 and recorder.recording.op_of[number] in _ZEROS
        if self.in_backward_thread and result is not target and is_zeros:
            recorder.adopt(result, recorder.release(target))
        else:
            recorder.watch(result)
        return result

    def contiguous_copy(self, tensor: torch.Tensor | None) -> int:
        """The number of the copy that a kernel makes of an argument it needs in one piece; -1 without one."""
        if tensor is None or tensor.is_contiguous():
            return -1
        return self.recorder.allocate(tensor.numel() * tensor.element_size())

    def workspace(self, library: str, size_bytes: int) -> None:
        """Scratch memory that a library keeps for each thread, made at its first use there."""
        key = (library, self.in_backward_thread)
        if key not in self.workspaces:
            self.workspaces.add(key)
            self.recorder.workspace(size_bytes)


_ZEROS = frozenset({"zeros", "zeros_like", "new_zeros"})

Rule = Callable[[KernelCall], Any]
_RULES: dict[Any, Rule] = {}
_RULES_BY_NAME: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for aten ops by name, with or without overload ("mm", "sum.dim_IntList").

    An op of another library, which may not be loaded yet, is "library::op".
    """

    def register(function: Rule) -> Rule:
        for name in names:
            if "::" in name:
                _RULES_BY_NAME[name] = function
                continue
            packet_name, _, overload = name.partition(".")
            packet = getattr(torch.ops.aten, packet_name, None)
            if packet is None:
                continue
            overloads = [overload] if overload else packet.overloads()
            for each in overloads:
                if hasattr(packet, each):
                    _RULES[getattr(packet, each)] = function
        return function

    return register


def rule_for(func: Any) -> Rule | None:
    """The rule of an op, if its outputs in order are not the whole story."""
    found = _RULES.get(func)
    if found is None and not func._schema.name.startswith("aten"):
        found = _RULES_BY_NAME.get(func._schema.name)
    return found
