"""A CUDA device that is not there: programs written for one run on fake tensors.

PyTorch's C++ side sees fake CPU tensors, which every build can differentiate and autocast. Python sees a
CUDA device: ``tensor.device`` says so, a `TorchFunctionMode` aims factories and copies, and `torch.cuda`
answers for it (`virtual_answers`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from trainmem_backend.trace.errors import TraceError
from trainmem_backend.trace.record_mode import RecordMode
from trainmem_backend.trace.recurrent import RecurrentOps
from trainmem_backend.trace.virtual_tensors import CPU, CUDA, TensorMethods

__all__ = ["CPU", "CUDA", "VirtualCuda", "is_cuda", "is_integer"]

_NEW_FACTORIES = {
    getattr(torch.Tensor, name)
    for name in ("new_empty", "new_zeros", "new_ones", "new_full", "new_tensor", "new_empty_strided")
}
_LIKE_FACTORIES = {
    getattr(torch, name)
    for name in (
        "empty_like",
        "zeros_like",
        "ones_like",
        "full_like",
        "rand_like",
        "randn_like",
        "randint_like",
    )
}


def is_integer(value: Any) -> bool:
    """Whether a device is named by its number."""
    return isinstance(value, int) and not isinstance(value, bool)


def _named(device: Any) -> torch.device:
    """A number alone is the accelerator's; `torch.device` would look for a real one."""
    return CUDA if is_integer(device) else torch.device(device)


def is_cuda(device: Any) -> bool:
    """Whether a device is the GPU. Raises `TraceError` for a second, whose memory would be taken for the first's."""
    if device is None:
        return False
    named = _named(device)
    number = device if is_integer(device) else named.index
    if named.type == "cuda" and number:
        raise TraceError(f"cuda:{number}: a traced program has one GPU, cuda:0")
    return named.type == "cuda"


class VirtualCuda(TorchFunctionMode):
    """Places tensors on the recorded device or on the host, as the program asks."""

    def __init__(self, record_mode: RecordMode) -> None:
        super().__init__()
        self.record_mode = record_mode
        self.recorder = record_mode.recorder
        # `torch.device` as a context leaves `normal` where it is: on the host unless told otherwise.
        factories = {*_device_constructors(), torch.normal}
        self._follow_default = frozenset(_device_constructors())
        self._handlers: dict[Any, Callable[..., Any]] = {
            torch.device: self._make_device,
            torch.Tensor.device.__get__: self._device,
            torch.Tensor.is_cuda.__get__: self._is_cuda,  # type: ignore[attr-defined]
            torch.Tensor.is_cpu.__get__: self._is_cpu,  # type: ignore[attr-defined]
            torch.Tensor.get_device: self._get_device,
            torch.Tensor.to: self._to,
            torch.Tensor.cuda: self._cuda,
            torch.Tensor.cpu: self._cpu,
            torch.Tensor.pin_memory: self._same,
            torch.Tensor.__getitem__: self._at_index,
            torch.Tensor.__setitem__: self._at_index,
        }
        self._handlers |= TensorMethods(record_mode, self._on_device, self._move).handlers()
        self._handlers |= RecurrentOps(record_mode, self._on_device).handlers()
        for factory in factories:
            self._handlers[factory] = self._factory
        for factory in _NEW_FACTORIES | _LIKE_FACTORIES:
            self._handlers[factory] = self._like

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Redirect what names a device; everything else runs as it is."""
        handler = self._handlers.get(func)
        record_mode = self.record_mode
        before, record_mode.caller = record_mode.caller, args
        try:
            if handler is not None:
                return handler(func, args, kwargs or {})
            if kwargs:
                return func(*args, **kwargs)
            return func(*args)
        finally:
            record_mode.caller = before

    def _make_device(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
        if len(args) == 1 and not kwargs and is_integer(args[0]):
            return torch.device("cuda", args[0])
        device: torch.device = func(*args, **kwargs)
        return device

    def _on_device(self, tensor: torch.Tensor) -> bool:
        if not isinstance(tensor, FakeTensor):
            # A DTensor is where its local part is.
            tensor = getattr(tensor, "_local_tensor", tensor)
        return isinstance(tensor, FakeTensor) and self.recorder.is_device(tensor)

    def _device(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
        """FakeTensor has its own property; this one serves the classes that wrap fake tensors."""
        device: torch.device = CUDA if self._on_device(args[0]) else func(*args)
        return device

    def _is_cuda(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return self._on_device(args[0])

    def _is_cpu(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return not self._on_device(args[0])

    def _get_device(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        return 0 if self._on_device(args[0]) else -1

    def _at_index(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A list of places becomes a tensor beside the indexed one, and autograd keeps it for backward.

        PyTorch makes it in C++, out of sight, where the indexed tensor seems to be: on the host
        (sequenceToVariable in python_variable_indexing.cpp).
        """
        tensor, index, *value = args
        if self._on_device(tensor):
            if isinstance(index, tuple):
                index = tuple(self._place(part) for part in index)
            else:
                index = self._place(index)
        return func(tensor, index, *value)

    def _place(self, index: Any) -> Any:
        if isinstance(index, list) and index and all(isinstance(item, bool | int) for item in index):
            return self._factory(torch.tensor, (index,), {"device": CUDA})
        return index

    def _same(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args[0]

    @contextlib.contextmanager
    def placing(self, where: str | None) -> Iterator[None]:
        """Results go ``where`` inside: "device", "host", or None to follow the inputs."""
        before = self.record_mode.placement
        self.record_mode.placement = where
        try:
            yield
        finally:
            self.record_mode.placement = before

    def _factory(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        device = kwargs.get("device")
        if device is None and func in self._follow_default:
            # PyTorch's own mode for `set_default_device` runs below this one: too late to redirect
            device = torch.utils._device.CURRENT_DEVICE
        if device is not None and _named(device).type == "meta":
            return func(*args, **kwargs)
        where = "device" if is_cuda(device) else "host"
        if where == "device":
            kwargs = {**kwargs, "device": CPU}
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        with self.placing(where):
            return func(*args, **kwargs)

    def _like(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        device = kwargs.get("device")
        if device is None:
            return func(*args, **kwargs)
        if _named(device).type == "meta":
            return func(*args, **kwargs)
        with self.placing("device" if is_cuda(device) else "host"):
            return func(*args, **{**kwargs, "device": CPU})

    def _to(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor, rest = args[0], args[1:]
        kwargs = dict(kwargs)
        copy = kwargs.pop("copy", False)
        if (rest and isinstance(rest[0], torch.Tensor)) or "other" in kwargs:
            other = kwargs.pop("other", None)
            if other is None:
                other, rest = rest[0], rest[1:]
            device = CUDA if self._on_device(other) else CPU
            dtype = other.dtype
            if len(rest) > 1:
                copy = rest[1]
            memory_format = kwargs.get("memory_format")
        else:
            bools = [value for value in rest if isinstance(value, bool)]
            if len(bools) > 1:
                copy = bools[1]
                rest = tuple(value for value in rest if not isinstance(value, bool))
            device, dtype, _, memory_format = torch._C._nn._parse_to(*rest, **kwargs)
        return self._move(tensor, device, dtype, copy=copy, memory_format=memory_format)

    def _cuda(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        is_cuda(args[1] if len(args) > 1 else kwargs.get("device"))
        return self._move(args[0], CUDA, None, memory_format=kwargs.get("memory_format"))

    def _cpu(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._move(args[0], CPU, None, memory_format=kwargs.get("memory_format"))

    def _move(
        self,
        tensor: torch.Tensor,
        device: torch.device | None,
        dtype: torch.dtype | None,
        *,
        copy: bool = False,
        memory_format: Any = None,
    ) -> torch.Tensor:
        options: dict[str, Any] = {} if memory_format is None else {"memory_format": memory_format}
        target = tensor.dtype if dtype is None else dtype
        on_device = self._on_device(tensor)
        if is_cuda(device) and (move := getattr(tensor, "move_to_device", None)) is not None:
            # Weights that are packed by the move, also where they are on the device already.
            with self:
                packed: torch.Tensor = move(tensor)
            return packed
        if device is None or device.type == "meta" or is_cuda(device) == on_device:
            if device is not None and device.type == "meta":
                options["device"] = device
            return torch.Tensor.to(tensor, dtype=target, copy=copy, **options)
        with self.placing("host" if on_device else "device"):
            return torch.Tensor.to(tensor, dtype=target, copy=True, **options)
