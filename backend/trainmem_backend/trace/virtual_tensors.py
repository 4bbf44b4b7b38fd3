"""Methods that a tensor answers from its memory, or by its class: a fake tensor has neither a GPU's has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from trainmem_backend.trace.errors import TraceError
from trainmem_backend.trace.legacy_types import LegacyType
from trainmem_backend.trace.record_mode import RecordMode

__all__ = ["CPU", "CUDA", "TensorMethods"]

CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")


class TensorMethods:
    """Their stand-ins; ``on_device`` says where a tensor is, ``move`` copies it to a device and a dtype."""

    def __init__(
        self,
        record_mode: RecordMode,
        on_device: Callable[[torch.Tensor], bool],
        move: Callable[[torch.Tensor, torch.device, torch.dtype | None], torch.Tensor],
    ) -> None:
        self.record_mode, self._on_device, self._move = record_mode, on_device, move

    def handlers(self) -> dict[Any, Callable[..., Any]]:
        """By the method that each stands for."""
        tensor = torch.Tensor
        return {
            tensor.data_ptr: self._data_ptr,
            tensor.numpy: self._values,
            tensor.tolist: self._values,
            tensor.__dlpack__: self._no_memory,
            tensor.__dlpack_device__: self._no_memory,
            tensor.type: self._type,
            tensor.__format__: self._format,
            tensor.__deepcopy__: self._deepcopy,
        }

    def _data_ptr(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """As unlike of two storages, and as like of two views of one, as an address is."""
        tensor = args[0]
        if not isinstance(tensor, FakeTensor):
            own: int = func(*args)
            return own
        address: int = tensor.untyped_storage()._cdata + int(tensor.storage_offset()) * tensor.element_size()
        return address if tensor.numel() else 0

    def _no_memory(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if isinstance(args[0], FakeTensor):
            raise TraceError("DLPack hands on a tensor's memory, and in a trace there is none")
        return func(*args, **kwargs)

    def _values(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor = args[0]
        with _disable_current_modes():
            if isinstance(tensor, FakeTensor):
                tensor = self.record_mode.answers.values(tensor)
            return func(tensor, *args[1:], **kwargs)

    def _type(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``tensor.type(torch.cuda.FloatTensor)``, or its name where none is given."""
        tensor, *rest = args
        wanted = rest[0] if rest else kwargs.get("dtype")
        if wanted is None:
            name: str = func(tensor)
            return name.replace("torch.", "torch.cuda.", 1) if self._on_device(tensor) else name
        legacy = getattr(torch.cuda, wanted.rpartition(".")[2], None) if isinstance(wanted, str) else wanted
        if isinstance(wanted, str) and not wanted.startswith("torch.cuda."):
            return self._move(func(tensor, wanted), CPU, None)
        if isinstance(legacy, LegacyType):
            return self._move(tensor, CUDA, legacy.dtype)
        return func(tensor, wanted)

    def _format(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """``f"{loss:.3f}"``: PyTorch formats the value of its own tensors only."""
        tensor, specification = args
        if isinstance(tensor, FakeTensor) and tensor.dim() == 0:
            return format(tensor.item(), specification)
        text: str = func(tensor, specification)
        return text

    def _deepcopy(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """PyTorch copies the storage alone, which has no device here."""
        tensor, memo = args
        if type(tensor) not in (FakeTensor, torch.Tensor) or not tensor.is_leaf:
            return func(tensor, memo)
        if id(tensor) not in memo:
            with torch.no_grad():
                copied = tensor.detach().clone()
            memo[id(tensor)] = copied.requires_grad_(tensor.requires_grad)
        return memo[id(tensor)]
