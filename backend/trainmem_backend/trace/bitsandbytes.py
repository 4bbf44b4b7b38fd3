"""bitsandbytes on a virtual GPU: its own CUDA code runs, with a native library that does nothing.

The Python half of bitsandbytes' CUDA backend decides what is allocated and then calls compiled kernels by
pointer. That half is executed here as it is; only the pointers lead nowhere.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from trainmem_backend.trace.errors import TraceError
from trainmem_backend.trace.recorder import Recorder

__all__ = ["cuda_kernels", "elements", "virtual_bitsandbytes"]


def elements(parameter: torch.Tensor) -> int:
    """How many values a weight has; of one whose values are packed two to a byte, those of its matrix."""
    packed = getattr(parameter, "quant_state", None)
    return math.prod(parameter.shape if packed is None else packed.shape)


class _NativeFunction:
    """A compiled function that does nothing."""

    argtypes: Any = None
    restype: Any = None

    def __call__(self, *args: Any) -> int:
        return 0


class _NativeLibrary:
    """A native library in which every name is a function."""

    def __init__(self) -> None:
        self._functions: dict[str, _NativeFunction] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._functions.setdefault(name, _NativeFunction())

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


def _stream(device: Any = None) -> int:
    return 0


def cuda_kernels() -> dict[Any, Callable[..., Any]]:
    """The Python functions that CUDA tensors reach in bitsandbytes, by op: its defaults, then its CUDA ones."""
    import bitsandbytes

    folder = Path(str(bitsandbytes.__file__)).parent / "backends"
    found: dict[Any, Callable[..., Any]] = {}
    for backend in ("default", "cuda"):
        source = folder / backend / "ops.py"
        if not source.exists():
            raise TraceError(
                f"bitsandbytes {bitsandbytes.__version__}: it has no {backend} backend in Python"
            )
        kernels = _registered(source, f"bitsandbytes.backends.{backend}._virtual", backend)
        if not kernels:
            raise TraceError(
                f"bitsandbytes {bitsandbytes.__version__}: its {backend} kernels are registered in another way"
            )
        found |= kernels
    return found


def _registered(source: Path, name: str, backend: str) -> dict[Any, Callable[..., Any]]:
    """Run a backend's file as a module of its own and collect what it registers."""
    import bitsandbytes._ops
    import bitsandbytes.cextension

    found: dict[Any, Callable[..., Any]] = {}

    def register(op: str, device: str, function: Callable[..., Any] | None = None) -> Any:
        if function is None:
            return lambda decorated: register(op, device, decorated)
        namespace, _, full = op.partition("::")
        packet, _, overload = full.partition(".")
        if device == backend:
            found[getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")] = function
        return function

    spec = importlib.util.spec_from_file_location(name, source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with (
        mock.patch.object(bitsandbytes._ops, "register_kernel", register),
        mock.patch.object(bitsandbytes.cextension, "lib", _NativeLibrary()),
        mock.patch.object(torch._C, "_cuda_getCurrentRawStream", _stream, create=True),
    ):
        spec.loader.exec_module(module)
    return found


class _Stand(type):
    """`isinstance` of a stand-in class asks for the attributes that only its parameters have."""

    mark: str

    def __instancecheck__(cls, instance: Any) -> bool:
        return hasattr(instance, cls.mark)


class _Params4bit(metaclass=_Stand):
    """`bitsandbytes.nn.Params4bit` as a fake parameter, packed when it moves to the device."""

    mark = "compress_statistics"

    def __new__(  # type: ignore[misc]
        cls,
        data: torch.Tensor,
        requires_grad: bool = False,
        quant_state: Any = None,
        blocksize: int | None = None,
        compress_statistics: bool = True,
        quant_type: str = "fp4",
        quant_storage: torch.dtype = torch.uint8,
        module: Any = None,
        bnb_quantized: bool = False,
        **kwargs: Any,
    ) -> torch.nn.Parameter:
        parameter: Any = torch.nn.Parameter(data, requires_grad)
        parameter.blocksize = blocksize or 64
        parameter.compress_statistics = compress_statistics
        parameter.quant_type = quant_type
        parameter.quant_state = quant_state
        parameter.quant_storage = quant_storage
        parameter.module = module
        parameter.bnb_quantized = bnb_quantized
        if not bnb_quantized:
            parameter.move_to_device = _pack_4bit
        packed: torch.nn.Parameter = parameter
        return packed


def _pack_4bit(parameter: Any) -> torch.nn.Parameter:
    """What `Params4bit._quantize` does."""
    import bitsandbytes

    weight = parameter.data.contiguous().to("cuda")
    packed, state = bitsandbytes.functional.quantize_4bit(
        weight,
        blocksize=parameter.blocksize,
        compress_statistics=parameter.compress_statistics,
        quant_type=parameter.quant_type,
        quant_storage=parameter.quant_storage,
    )
    if parameter.module is not None:
        parameter.module.quant_state = state
    return _Params4bit(
        packed,
        requires_grad=False,
        quant_state=state,
        blocksize=parameter.blocksize,
        compress_statistics=parameter.compress_statistics,
        quant_type=parameter.quant_type,
        quant_storage=parameter.quant_storage,
        module=parameter.module,
        bnb_quantized=True,
    )


class _Int8Params(metaclass=_Stand):
    """`bitsandbytes.nn.Int8Params` as a fake parameter, quantised when it moves to the device."""

    mark = "SCB"

    def __new__(  # type: ignore[misc]
        cls,
        data: torch.Tensor,
        requires_grad: bool = True,
        has_fp16_weights: bool = False,
        CB: torch.Tensor | None = None,
        SCB: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> torch.nn.Parameter:
        parameter: Any = torch.nn.Parameter(data, requires_grad)
        parameter.CB, parameter.SCB = CB, SCB
        parameter.has_fp16_weights = has_fp16_weights
        if not has_fp16_weights and data.dtype is not torch.int8:
            parameter.move_to_device = _pack_int8
        packed: torch.nn.Parameter = parameter
        return packed


def _pack_int8(parameter: Any) -> torch.nn.Parameter:
    """What `Int8Params._quantize` does."""
    import bitsandbytes

    weight = parameter.data.contiguous().to(device="cuda", dtype=torch.float16)
    packed, scales, _ = bitsandbytes.functional.int8_vectorwise_quant(weight)
    return _Int8Params(packed, requires_grad=False, CB=packed, SCB=scales)


@contextlib.contextmanager
def virtual_bitsandbytes(recorder: Recorder) -> Iterator[None]:
    """bitsandbytes' parameters can be fake, and its paged memory is counted as host-managed."""
    import bitsandbytes

    def paged(*shape: int, dtype: torch.dtype = torch.float32, device: Any = None) -> torch.Tensor:
        tensor: Any = torch.empty(shape, dtype=dtype)
        tensor.is_paged, tensor.page_deviceid = True, 0
        recorder.managed_bytes += tensor.nbytes
        managed: torch.Tensor = tensor
        return managed

    functional, modules = bitsandbytes.functional, bitsandbytes.nn.modules
    with (
        mock.patch.object(functional, "get_paged", paged),
        mock.patch.object(functional, "lib", _NativeLibrary()),
        mock.patch.dict(functional.name2qmap, clear=True),
        mock.patch.object(modules, "Params4bit", _Params4bit),
        mock.patch.object(modules, "Int8Params", _Int8Params),
        mock.patch.object(bitsandbytes.nn, "Params4bit", _Params4bit),
        mock.patch.object(bitsandbytes.nn, "Int8Params", _Int8Params),
        mock.patch.object(torch._C, "_cuda_getCurrentRawStream", _stream, create=True),
    ):
        yield
