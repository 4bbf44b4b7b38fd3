"""CUDA's autocast lists, on the CPU's dispatch key."""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from trainmem_backend.trace.record_mode import RecordMode

__all__ = ["cuda_autocast", "forget_casts", "lower_precision", "seen_by_python_kernels"]

_FP32 = """
acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar
pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm frobenius_norm.dim
nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d
hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss
multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss
binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp upsample_nearest1d
_upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d
_upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa
upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa
"""
_FP32_BY_DTYPE = """
prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm
linalg_matrix_norm.str_ord sum sum.dim_IntList
"""
_LOWER = """
prelu addmv addr mv einsum chain_matmul linalg_multi_dot convolution _convolution
_thnn_fused_lstm_cell _thnn_fused_gru_cell
"""
_PROMOTE = """
addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add
"""
"""torch/include/ATen/autocast_mode.h: AT_FORALL_FP32, AT_FORALL_FP32_SET_OPT_DTYPE, AT_FORALL_PROMOTE, and
the part of AT_FORALL_LOWER_PRECISION_FP that the CPU lacks."""

_KEY = torch._C.DispatchKey.AutocastCPU
_OFF = torch._C.DispatchKeySet(_KEY)


def _eligible(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype is not torch.float64


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if _eligible(value):
        return value if value.dtype is dtype else torch.ops.aten.to.dtype(value, dtype)
    if isinstance(value, list | tuple) and any(isinstance(item, torch.Tensor) for item in value):
        return type(value)(_cast(item, dtype) for item in value)
    return value


def _fp32(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_OFF):
            args = tuple(_cast(value, torch.float32) for value in args)
            return op(*args, **{name: _cast(value, torch.float32) for name, value in kwargs.items()})

    return kernel


def _fp32_by_dtype(op: Any) -> Callable[..., Any]:
    names = [argument.name for argument in op._schema.arguments]
    position = names.index("dtype")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_OFF):
            given = args[position] if len(args) > position else kwargs.get("dtype")
            if given is None and _eligible(args[0]):
                return op(*args[:position], **{**kwargs, "dtype": torch.float32})
            return op(*args, **kwargs)

    return kernel


def _lower(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_OFF):
            dtype = torch.get_autocast_dtype("cpu")
            return op(*(_cast(value, dtype) for value in args), **kwargs)

    return kernel


_CASTS: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}


def forget_casts() -> None:
    """The outermost autocast ends: the weights' casts that `lower_precision` made are dropped."""
    _CASTS.clear()


@contextlib.contextmanager
def lower_precision(values: Sequence[torch.Tensor | None]) -> Iterator[Sequence[Any]]:
    """Under autocast the arguments of an op of the lower-precision list, cast, and no autocast inside.

    Casts of weights are made once (cached_cast in autocast_mode.cpp).
    """
    if not torch.is_autocast_enabled("cpu"):
        yield values
        return
    dtype = torch.get_autocast_dtype("cpu")
    with torch._C._ExcludeDispatchKeyGuard(_OFF):
        yield [_cached_cast(value, dtype) for value in values]


def _cached_cast(value: Any, dtype: torch.dtype) -> Any:
    if (
        not _eligible(value)
        or not (value.dtype is torch.float32 and value.requires_grad and value.is_leaf)
        or not torch.is_autocast_cache_enabled()
    ):
        return _cast(value, dtype)
    known = _CASTS.get(id(value))
    if known is None or known[0]() is not value or known[1].dtype is not dtype:
        known = weakref.ref(value), _cast(value, dtype)
        _CASTS[id(value)] = known
    return known[1]


def _promote(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_OFF):
            dtypes = {value.dtype for value in args if _eligible(value)}
            widest = torch.float32 if torch.float32 in dtypes else torch.get_autocast_dtype("cpu")
            return op(*(_cast(value, widest) for value in args), **kwargs)

    return kernel


_ON_BOTH_LOWER = {
    "_convolution.deprecated",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_tbc",
    "conv_transpose1d",
    "conv_transpose2d.input",
    "conv_transpose3d.input",
    "addmm",
    "matmul",
    "mm",
    "linalg_vecdot",
    "linear",
    "addbmm",
    "baddbmm",
    "bmm",
    "scaled_dot_product_attention",
}
"""Lower precision on both devices: the CPU's own kernels serve, with their cache of cast weights."""


def _overload(name: str) -> Any:
    packet_name, _, overload = name.partition(".")
    packet = getattr(torch.ops.aten, packet_name, None)
    return getattr(packet, overload or "default", None) if packet is not None else None


def _kernels() -> dict[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = {}
    for names, make in (
        (_FP32, _fp32),
        (_FP32_BY_DTYPE, _fp32_by_dtype),
        (_LOWER, _lower),
        (_PROMOTE, _promote),
    ):
        for name in names.split():
            op = _overload(name)
            if op is not None:
                found[name] = make(op)
    for full in torch._C._dispatch_get_all_op_names():
        name = full.removeprefix("aten::")
        if name == full or name in found or name in _ON_BOTH_LOWER:
            continue
        if torch._C._dispatch_has_kernel_for_dispatch_key(full, "AutocastCPU"):
            op = _overload(name)
            if op is not None:
                found[name] = torch.library.fallthrough_kernel
    return found


@contextlib.contextmanager
def seen_by_python_kernels(record_mode: RecordMode) -> Iterator[None]:
    """Inside, autocast also casts what ops call whose CUDA kernels are written in Python.

    Not where a dispatch mode of the program stands between, as a selective checkpoint's: PyTorch excludes
    autocast inside a mode (PythonFallbackKernel.cpp).
    """

    def aware(op: Any) -> Callable[..., Any]:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            record_mode.autocast_inside = _get_current_dispatch_mode_stack()[-1] is record_mode
            with torch._C._ExcludeDispatchKeyGuard(_OFF):
                return op(*args, **kwargs)

        return kernel

    libraries: dict[str, torch.library.Library] = {}
    try:
        for op in record_mode.python_kernels:
            if op.namespace not in libraries:
                libraries[op.namespace] = torch.library.Library(op.namespace, "IMPL")
            libraries[op.namespace].impl(op.name().partition("::")[2], aware(op), "AutocastCPU")
        yield
    finally:
        for library in libraries.values():
            library._destroy()


@contextlib.contextmanager
def cuda_autocast() -> Iterator[None]:
    """Inside, autocast on the CPU casts what autocast on CUDA casts."""
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, kernel in _kernels().items():
                library.impl(name, kernel, "AutocastCPU")
        yield
    finally:
        library._destroy()
