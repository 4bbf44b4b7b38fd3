"""What `torch.cuda` and `torch.accelerator` answer of a device that is not there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor

from trainmem_backend.trace.legacy_types import legacy_types
from trainmem_backend.trace.record_mode import RecordMode
from trainmem_backend.trace.recorder import Recorder
from trainmem_backend.trace.virtual_autocast import autocast_aimed_at_cpu
from trainmem_backend.trace.virtual_cuda import CPU, CUDA, VirtualCuda, is_cuda, is_integer
from trainmem_backend.trace.virtual_streams import Streams, VirtualStream

__all__ = ["memory_answers", "patched_cuda"]


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _zero(*args: Any, **kwargs: Any) -> int:
    return 0


_OF_NVTX: dict[str, Any] = {
    "range_push": _zero,
    "range_pop": _zero,
    "range_start": _zero,
    "range_end": _nothing,
    "mark": _nothing,
    "range": lambda *a, **k: contextlib.nullcontext(),
}


def _of_cuda(record_mode: RecordMode, streams: Streams) -> dict[str, Any]:
    """What `torch.cuda` and `torch.cuda.memory` answer; memory counters: see `memory_answers`."""
    recorder, traits = record_mode.recorder, record_mode.traits
    properties = SimpleNamespace(
        name=traits.name,
        total_memory=traits.total_bytes,
        major=traits.capability[0],
        minor=traits.capability[1],
        multi_processor_count=traits.multiprocessors,
        max_threads_per_multi_processor=traits.threads_per_multiprocessor,
        is_integrated=int(traits.is_integrated),
    )
    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": _zero,
        "set_device": _nothing,
        "init": _nothing,
        "_lazy_init": _nothing,
        "synchronize": _nothing,
        "ipc_collect": _nothing,
        "empty_cache": recorder.empty_cache,
        "get_device_name": lambda *a: traits.name,
        "get_device_capability": lambda *a: traits.capability,
        "get_device_properties": lambda *a: properties,
        "is_bf16_supported": lambda *a, **k: True,
        "is_current_stream_capturing": lambda: False,
        "manual_seed": _nothing,
        "manual_seed_all": _nothing,
        "seed": _nothing,
        "get_rng_state": lambda *a: torch.zeros(16, dtype=torch.uint8, device=CPU),
        "get_rng_state_all": lambda: [torch.zeros(16, dtype=torch.uint8, device=CPU)],
        "set_rng_state": _nothing,
        "set_rng_state_all": _nothing,
        "Stream": streams.Stream,
        "Event": VirtualStream,
        "stream": streams.using,
        "current_stream": streams.current,
        "default_stream": streams.default,
        "device": VirtualStream,
        "device_of": VirtualStream,
        "can_device_access_peer": lambda *a: True,
        "utilization": _zero,
        "temperature": _zero,
        "power_draw": _zero,
        "clock_rate": _zero,
        "_sleep": _nothing,
        "set_per_process_memory_fraction": _nothing,
        "get_per_process_memory_fraction": lambda *a: 1.0,
        "host_memory_stats": lambda *a: {},
        "reset_accumulated_host_memory_stats": _nothing,
        "reset_peak_host_memory_stats": _nothing,
        "memory_snapshot": lambda *a, **k: [],
        "_snapshot": lambda *a, **k: {"segments": [], "device_traces": []},
        "_record_memory_history": _nothing,
        "_dump_snapshot": _nothing,
    }


def _of_accelerator(recorder: Recorder, streams: Streams) -> dict[str, Any]:
    """What `torch.accelerator` answers."""
    return {
        "is_available": lambda: True,
        "current_accelerator": lambda *a, **k: torch.device("cuda"),
        "device_count": lambda: 1,
        "current_device_index": _zero,
        "current_device_idx": _zero,
        "set_device_index": _nothing,
        "set_device_idx": _nothing,
        "synchronize": _nothing,
        "empty_cache": recorder.empty_cache,
        "current_stream": streams.current,
    }


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


def _numbers_are_cuda(parse_to: Callable[..., Any]) -> Callable[..., Any]:
    """What reads the arguments of ``Tensor.to`` and ``Module.to``, for devices that are numbers."""

    def parse(*args: Any, **kwargs: Any) -> Any:
        args = tuple(CUDA if is_integer(value) and is_cuda(value) else value for value in args)
        if is_integer(kwargs.get("device")) and is_cuda(kwargs["device"]):
            kwargs = {**kwargs, "device": CUDA}
        return parse_to(*args, **kwargs)

    return parse


def _address(data_ptr: Callable[[Any], int]) -> Callable[[Any], int]:
    """Of a storage; one of a fake tensor has none, and libraries tell tied weights by it."""

    def address(storage: Any) -> int:
        own: int = storage._cdata if storage.device.type == "meta" else data_ptr(storage)
        return own

    return address


@contextlib.contextmanager
def patched_cuda(mode: VirtualCuda) -> Iterator[None]:
    """`torch.cuda` and autocast answer for the virtual device inside."""
    record_mode, own_device = mode.record_mode, FakeTensor.__dict__["device"].fget
    recorder = record_mode.recorder
    streams = Streams(recorder)

    def device(tensor: FakeTensor) -> Any:
        """What Python reads; inside an op PyTorch must see the device it computes on."""
        if not record_mode.in_op and recorder.is_device(tensor):
            return CUDA
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
        _replace(stack, (torch.cuda, torch.cuda.memory, torch.cuda.random), _of_cuda(record_mode, streams))
        _replace(stack, (torch.cuda,), legacy_types())
        _replace(stack, (torch._C,), {"_get_accelerator": lambda *a, **k: torch.device("cuda")})
        _replace(stack, (torch.version,), {"cuda": "13.0"})
        # PyTorch wants a stream of its own class
        _replace(stack, (torch.Tensor,), {"record_stream": _nothing})
        _replace(stack, (torch.UntypedStorage,), {"data_ptr": _address(torch.UntypedStorage.data_ptr)})
        _replace(stack, (torch.cuda.nvtx,), _OF_NVTX)
        _replace(stack, (torch.accelerator, torch.accelerator.memory), _of_accelerator(recorder, streams))
        stack.enter_context(autocast_aimed_at_cpu(recorder))
        yield
