"""A CUDA device that is not there: programs written for one run on fake tensors.

PyTorch's C++ side sees fake CPU tensors, which every build can differentiate and autocast. Python sees a
CUDA device: ``tensor.device`` says so, a `TorchFunctionMode` aims factories and copies, and `torch.cuda` is
patched.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import _disable_current_modes

from trainmem_backend.trace.errors import TraceError
from trainmem_backend.trace.record_mode import RecordMode
from trainmem_backend.trace.recorder import Recorder

__all__ = ["VirtualCuda", "memory_answers", "patched_cuda"]

_CUDA = torch.device("cuda", 0)
_CPU = torch.device("cpu")
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


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _named(device: Any) -> torch.device:
    """A number alone is the accelerator's; `torch.device` would look for a real one."""
    return _CUDA if _is_integer(device) else torch.device(device)


def _is_cuda(device: Any) -> bool:
    return device is not None and _named(device).type == "cuda"


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
            torch.Tensor.record_stream: self._nothing,
            torch.Tensor.data_ptr: self._data_ptr,
            torch.Tensor.numpy: self._values,
            torch.Tensor.tolist: self._values,
            torch.Tensor.__dlpack__: self._no_memory,
            torch.Tensor.__dlpack_device__: self._no_memory,
            torch.Tensor.__getitem__: self._at_index,
            torch.Tensor.__setitem__: self._at_index,
        }
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
        if handler is not None:
            return handler(func, args, kwargs or {})
        if kwargs:
            return func(*args, **kwargs)
        return func(*args)

    def _make_device(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
        if len(args) == 1 and not kwargs and _is_integer(args[0]):
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
        device: torch.device = _CUDA if self._on_device(args[0]) else func(*args)
        return device

    def _is_cuda(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return self._on_device(args[0])

    def _is_cpu(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return not self._on_device(args[0])

    def _get_device(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        return 0 if self._on_device(args[0]) else -1

    def _data_ptr(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        return 0 if isinstance(args[0], FakeTensor) else func(*args)

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
            return self._factory(torch.tensor, (index,), {"device": _CUDA})
        return index

    def _same(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args[0]

    def _nothing(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        return None

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
        where = "device" if _is_cuda(device) else "host"
        if where == "device":
            kwargs = {**kwargs, "device": _CPU}
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
        with self.placing("device" if _is_cuda(device) else "host"):
            return func(*args, **{**kwargs, "device": _CPU})

    def _to(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor, rest = args[0], args[1:]
        kwargs = dict(kwargs)
        copy = kwargs.pop("copy", False)
        if (rest and isinstance(rest[0], torch.Tensor)) or "other" in kwargs:
            other = kwargs.pop("other", None)
            if other is None:
                other, rest = rest[0], rest[1:]
            device = _CUDA if self._on_device(other) else _CPU
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
        return self._move(args[0], _CUDA, None, memory_format=kwargs.get("memory_format"))

    def _cpu(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._move(args[0], _CPU, None, memory_format=kwargs.get("memory_format"))

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
        if _is_cuda(device) and (move := getattr(tensor, "move_to_device", None)) is not None:
            # Weights that are packed by the move, also where they are on the device already.
            with self:
                packed: torch.Tensor = move(tensor)
            return packed
        if device is None or device.type == "meta" or _is_cuda(device) == on_device:
            if device is not None and device.type == "meta":
                options["device"] = device
            return torch.Tensor.to(tensor, dtype=target, copy=copy, **options)
        with self.placing("host" if on_device else "device"):
            return torch.Tensor.to(tensor, dtype=target, copy=True, **options)


class _Stream:
    """A stream or event of the virtual device: work on it is done at once, memory on it is its own."""

    def __init__(self, *args: Any, number: int = 0, **kwargs: Any) -> None:
        self.cuda_stream = self.stream_id = number
        self.device = _CUDA

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: True if name == "query" else 0.0 if name == "elapsed_time" else None


class _Streams:
    """`torch.cuda`'s streams, with the one that is current."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._default = _Stream()
        self._current = self._default
        numbers = count(1)

        class Stream(_Stream):
            """`torch.cuda.Stream`: every one has memory of its own."""

            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(number=next(numbers))

        self.Stream = Stream

    def default(self, *args: Any) -> _Stream:
        """The stream that everything uses unless told otherwise."""
        return self._default

    def current(self, *args: Any) -> _Stream:
        """The stream in use."""
        return self._current

    @contextlib.contextmanager
    def using(self, stream: _Stream | None) -> Iterator[None]:
        """`torch.cuda.stream`."""
        before = self._current
        self._set(before if stream is None else stream)
        try:
            yield
        finally:
            self._set(before)

    def _set(self, stream: _Stream) -> None:
        self._current, self.recorder.stream = stream, stream.cuda_stream


class _AutocastOnCpu(torch.amp.autocast_mode.autocast):
    """`torch.autocast` whose "cuda" means the virtual device."""

    def __init__(
        self,
        device_type: str = "cuda",
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        if device_type == "cuda":
            dtype = torch.get_autocast_dtype("cuda") if dtype is None else dtype
            device_type = "cpu"
        super().__init__(device_type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


class _CudaAutocast(_AutocastOnCpu):
    def __init__(
        self, enabled: bool = True, dtype: torch.dtype = torch.float16, cache_enabled: bool = True
    ) -> None:
        super().__init__("cuda", enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)


def _replace(stack: contextlib.ExitStack, modules: Sequence[Any], values: dict[str, Any]) -> None:
    for module in modules:
        for name, value in values.items():
            if hasattr(module, name):
                stack.enter_context(mock.patch.object(module, name, value))


@contextlib.contextmanager
def memory_answers(functions: dict[str, Callable[..., Any]]) -> Iterator[None]:
    """Memory queries of `torch.cuda` and `torch.accelerator` are answered by ``functions`` inside."""
    with contextlib.ExitStack() as stack:
        modules = (torch.cuda, torch.cuda.memory, torch.accelerator, torch.accelerator.memory)
        _replace(stack, modules, functions)
        yield


def _aimed_at_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    def redirected(device_type: Any = "cpu", *rest: Any) -> Any:
        return function("cpu" if device_type == "cuda" else device_type, *rest)

    return redirected


def _numbers_are_cuda(parse_to: Callable[..., Any]) -> Callable[..., Any]:
    """What reads the arguments of ``Tensor.to`` and ``Module.to``, for devices that are numbers."""

    def parse(*args: Any, **kwargs: Any) -> Any:
        args = tuple(_CUDA if _is_integer(value) else value for value in args)
        if _is_integer(kwargs.get("device")):
            kwargs = {**kwargs, "device": _CUDA}
        return parse_to(*args, **kwargs)

    return parse


@contextlib.contextmanager
def patched_cuda(mode: VirtualCuda) -> Iterator[None]:
    """`torch.cuda` and autocast answer for the virtual device inside."""
    record_mode, own_device = mode.record_mode, FakeTensor.__dict__["device"].fget
    recorder, traits = record_mode.recorder, record_mode.traits
    streams = _Streams(recorder)
    properties = SimpleNamespace(
        name=traits.name,
        total_memory=traits.total_bytes,
        major=traits.capability[0],
        minor=traits.capability[1],
        multi_processor_count=traits.multiprocessors,
        max_threads_per_multi_processor=traits.threads_per_multiprocessor,
        is_integrated=int(traits.is_integrated),
    )

    def nothing(*args: Any, **kwargs: Any) -> None:
        return None

    def zero(*args: Any, **kwargs: Any) -> int:
        return 0

    cuda: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": zero,
        "set_device": nothing,
        "init": nothing,
        "_lazy_init": nothing,
        "synchronize": nothing,
        "ipc_collect": nothing,
        "empty_cache": recorder.empty_cache,
        "get_device_name": lambda *a: traits.name,
        "get_device_capability": lambda *a: traits.capability,
        "get_device_properties": lambda *a: properties,
        "is_bf16_supported": lambda *a, **k: True,
        "is_current_stream_capturing": lambda: False,
        "manual_seed": nothing,
        "manual_seed_all": nothing,
        "seed": nothing,
        "get_rng_state": lambda *a: torch.zeros(16, dtype=torch.uint8, device=_CPU),
        "get_rng_state_all": lambda: [torch.zeros(16, dtype=torch.uint8, device=_CPU)],
        "set_rng_state": nothing,
        "set_rng_state_all": nothing,
        "Stream": streams.Stream,
        "Event": _Stream,
        "stream": streams.using,
        "current_stream": streams.current,
        "default_stream": streams.default,
        "device": lambda *a: _Stream(),
        "device_of": lambda *a: _Stream(),
        "can_device_access_peer": lambda *a: True,
        "utilization": zero,
        "temperature": zero,
        "power_draw": zero,
        "clock_rate": zero,
        "_sleep": nothing,
        "set_per_process_memory_fraction": nothing,
        "get_per_process_memory_fraction": lambda *a: 1.0,
        "host_memory_stats": lambda *a: {},
        "reset_accumulated_host_memory_stats": nothing,
        "reset_peak_host_memory_stats": nothing,
        "memory_snapshot": lambda *a, **k: [],
        "_snapshot": lambda *a, **k: {"segments": [], "device_traces": []},
        "_record_memory_history": nothing,
        "_dump_snapshot": nothing,
    }
    markers: dict[str, Any] = {
        "range_push": zero,
        "range_pop": zero,
        "range_start": zero,
        "range_end": nothing,
        "mark": nothing,
        "range": lambda *a, **k: contextlib.nullcontext(),
    }
    accelerator: dict[str, Any] = {
        "is_available": lambda: True,
        "current_accelerator": lambda *a, **k: torch.device("cuda"),
        "device_count": lambda: 1,
        "current_device_index": zero,
        "current_device_idx": zero,
        "set_device_index": nothing,
        "set_device_idx": nothing,
        "synchronize": nothing,
        "empty_cache": recorder.empty_cache,
        "current_stream": streams.current,
    }

    def device(tensor: FakeTensor) -> Any:
        """What Python reads; inside an op PyTorch must see the device it computes on."""
        if not record_mode.in_op and recorder.is_device(tensor):
            return _CUDA
        return own_device(tensor)

    run_backward = torch.autograd.graph._engine_run_backward

    def backward(*args: Any, **kwargs: Any) -> Any:
        """Backward runs Python too (checkpoints, hooks, custom functions), and that must see the device."""
        with mode:
            return run_backward(*args, **kwargs)

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch.autograd, "_engine_run_backward", backward))
        stack.enter_context(mock.patch.object(FakeTensor, "device", property(device)))
        nn = torch._C._nn
        stack.enter_context(mock.patch.object(nn, "_parse_to", _numbers_are_cuda(nn._parse_to)))
        _replace(stack, (torch.cuda, torch.cuda.memory), cuda)
        _replace(stack, (torch.cuda.nvtx,), markers)
        _replace(stack, (torch.accelerator, torch.accelerator.memory), accelerator)
        amp = torch.amp.autocast_mode
        for owner in (torch, torch.amp, amp):
            if hasattr(owner, "autocast"):
                stack.enter_context(mock.patch.object(owner, "autocast", _AutocastOnCpu))
        stack.enter_context(mock.patch.object(torch.cuda.amp, "autocast", _CudaAutocast))
        clear = torch.clear_autocast_cache

        def clear_in_order() -> None:
            """The cache is a hash table of addresses: on a GPU, too, the order of its end differs every time."""
            with recorder.freeing_in_order():
                clear()

        stack.enter_context(mock.patch.object(torch, "clear_autocast_cache", clear_in_order))
        half = {"cuda": torch.float16}
        real_dtype = torch.get_autocast_dtype
        stack.enter_context(
            mock.patch.object(
                torch,
                "get_autocast_dtype",
                lambda kind: (
                    real_dtype("cpu")
                    if kind == "cuda" and torch.is_autocast_enabled("cpu")
                    else half.get(kind) or real_dtype(kind)
                ),
            )
        )
        for name in ("is_autocast_enabled", "set_autocast_enabled", "set_autocast_dtype"):
            stack.enter_context(mock.patch.object(torch, name, _aimed_at_cpu(getattr(torch, name))))
        yield
