"""The dispatch mode that sees every op below autograd and records what a CUDA device would allocate."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from trainmem_backend.trace.accumulation import ADD, ENGINE_CODE, adds_in_place
from trainmem_backend.trace.answers import Answers
from trainmem_backend.trace.attribution import Attribution, op_label
from trainmem_backend.trace.bucketing import Bucketing
from trainmem_backend.trace.errors import TraceError
from trainmem_backend.trace.fakes import FakeKernels
from trainmem_backend.trace.gpu import GpuTraits
from trainmem_backend.trace.kernels import KernelCall, rule_for
from trainmem_backend.trace.kernels.registry import tensors_in
from trainmem_backend.trace.recorder import BUCKET_INDEX, Recorder

__all__ = ["RecordMode"]

_DEVICE = torch.ops.prim.device.default
_CAST = torch.ops.aten._to_copy.default
_LOG_SOFTMAX = torch.ops.aten._log_softmax.default
_CAST_CACHE, _TEMPORARIES = BUCKET_INDEX["cast_cache"], BUCKET_INDEX["temporaries"]
_ITEM = torch.ops.aten._local_scalar_dense.default
_IS_NONZERO = torch.ops.aten.is_nonzero.default
"""Composite, and so taken apart in C++, but for kernels that are written in Python."""
_HOST_FAKE_FROM_BYTES = 1 << 20
_CPU = torch.device("cpu")
_AUTOCAST = torch._C.DispatchKey.AutocastCPU
_META = torch.device("meta")


class RecordMode(TorchDispatchMode):
    """Runs ops on fake tensors and records the allocations of those on the virtual device.

    Host tensors are real (small) or fake (large) and are never recorded. ``placement`` overrides where
    results go: "device" or "host" for factories and copies that the program aimed there, None to follow the
    inputs. Where there are none, they follow those of the function that the program called, ``caller``.
    """

    def __init__(self, recorder: Recorder, traits: GpuTraits, fake_mode: FakeTensorMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder
        self.traits = traits
        self.placement: str | None = None
        self.workspaces: set[tuple[str, bool]] = set()
        self.fakes = FakeKernels(fake_mode)
        self.answers = Answers()
        self.attribution = Attribution(recorder.number_of)
        self.bucketing = Bucketing(recorder)
        self._recomputes = False
        self.in_op = False
        self._adds_in_place = self._pauses = False
        self.python_kernels: dict[Any, Callable[..., Any]] = {}
        self.autocast_inside = False
        """Whether autocast casts what the next of those calls; `autocast.seen_by_python_kernels` says so."""
        self.function_mode: Any = None
        self.caller: tuple[Any, ...] = ()

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No wrapper around `__torch_dispatch__`: it costs time and hides the caller's frame."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run one op."""
        if func is _DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device
        if not hasattr(func, "overloadpacket"):
            return self._run_higher_order(func, args, kwargs or {})
        if self._pauses:
            return func(*args, **(kwargs or {}))
        for kind in types:
            if kind is not FakeTensor and kind not in _PLAIN:
                # A wrapper such as DTensor unpacks itself and comes back with what it holds.
                return NotImplemented
        if func in self.python_kernels:
            # Written in Python, so it allocates and calls ops itself, as the program around it does.
            excluded, self.autocast_inside = not self.autocast_inside, False
            with self, self.function_mode, torch._C._SetExcludeDispatchKeyGuard(_AUTOCAST, excluded):
                return self.python_kernels[func](*args, **(kwargs or {}))
        self.in_op = True
        from_engine = sys._getframe(1).f_code is ENGINE_CODE
        try:
            # Inside an op attributes are PyTorch's own business: no detour through the function mode.
            with torch._C.DisableTorchFunction():
                return self._run(func, args, kwargs or {}, from_engine)
        finally:
            self.in_op = False

    def _run_higher_order(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An op that is given the function to run: DTensor's random ones run one below its generator's offsets."""
        if func.name() == "run_dtensor_rng_op":
            _, _, op, *rest = args
            with self, self.function_mode:
                return op(*rest, **kwargs)
        raise TraceError(f"{func.name()} is made of compiled kernels, which a trace cannot replay")

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], from_engine: bool) -> Any:
        recorder = self.recorder
        on_device = any_tensor = any_fake = False
        for value in args:
            if isinstance(value, torch.Tensor):
                any_tensor = True
                if isinstance(value, FakeTensor):
                    any_fake = True
                    if not on_device and recorder.is_device(value):
                        on_device = True
            elif isinstance(value, list | tuple):
                for item in value:
                    if isinstance(item, torch.Tensor):
                        any_tensor = True
                        if isinstance(item, FakeTensor):
                            any_fake = True
                            if not on_device and recorder.is_device(item):
                                on_device = True
        placement = self.placement
        if placement is not None:
            on_device = placement == "device"
        elif not any_tensor:
            if kwargs.get("device") == _META:
                with unset_fake_temporarily():
                    return func(*args, **kwargs)
            on_device = not _takes_tensors(func) and not self._called_on_host()
        device = kwargs.get("device")
        if device is not None and device.type == "cuda":
            # A factory inside a function of torch.nn.functional, where the function mode does not look.
            kwargs, on_device = {**kwargs, "device": _CPU}, True
        if func is _ITEM:
            return self.answers.item(args[0])
        if func is _IS_NONZERO:
            return bool(self.answers.item(args[0]))
        if not on_device:
            return self._on_host(func, args, kwargs, any_fake=any_fake, any_tensor=any_tensor)
        self._attribute(func, args)
        if func is ADD and (from_engine or self._adds_in_place):
            return self._accumulate(args, kwargs, certain=not from_engine)
        rule = rule_for(func)
        if rule is not None:
            result = rule(KernelCall(self, func, args, kwargs))
        else:
            result = self.fakes.run(func, args, kwargs)
            if isinstance(result, torch.Tensor):
                recorder.watch(result)
            elif isinstance(result, list | tuple):
                for item in result:
                    if isinstance(item, torch.Tensor):
                        recorder.watch(item)
                    elif isinstance(item, list | tuple):
                        for inner in item:
                            if isinstance(inner, torch.Tensor):
                                recorder.watch(inner)
        self.answers.saw(func, args, kwargs, result)
        return result

    def _called_on_host(self) -> bool:
        """Whether the function that the program called was given tensors of the host alone, as in a collate function.

        In C++ its factories name the device of what it was given, and that is the CPU of both.
        """
        tensors = tensors_in(self.caller)
        return bool(tensors) and not any(
            type(tensor) not in _HOST_KINDS or self.recorder.is_device(tensor) for tensor in tensors
        )

    def _attribute(self, func: Any, args: tuple[Any, ...]) -> None:
        """Say whose allocations come next."""
        recorder, attribution = self.recorder, self.attribution
        recorder.op = op_label(func)
        phase = recorder.phase
        in_backward = torch._C._current_graph_task_id() != -1
        module = attribution.module(backward=in_backward)
        recorder.module = module or ""
        # Segments of blocks run again outside any module, but with gradients on.
        recomputes = in_backward and (attribution.in_module or torch.is_grad_enabled())
        if recomputes != self._recomputes:
            # A checkpoint's recomputation begins or ends: what it leaves behind is saved for backward.
            self._recomputes = recomputes
            if recomputes:
                self.bucketing.start()
            else:
                self.bucketing.saved()
        in_forward = phase == "forward" or recomputes
        if func is _LOG_SOFTMAX:
            self.bucketing.scores((recorder.number_of(args[0]),))
        if in_forward and func is _CAST and isinstance(args[0], torch.nn.Parameter):
            recorder.bucket = _CAST_CACHE
        elif in_forward or in_backward:
            recorder.bucket = attribution.bucket(func, module, recomputes=recomputes)
        else:
            recorder.bucket = _TEMPORARIES

    def _on_host(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, any_fake: bool, any_tensor: bool
    ) -> Any:
        """Small host tensors are real; large ones only have a shape."""
        if any_fake or (not any_tensor and _is_large(func, args, kwargs)):
            result = func(*args, **kwargs)
            self.answers.saw(func, args, kwargs, result)
            return result
        with unset_fake_temporarily():
            return func(*args, **kwargs)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, PyTorch asks about shapes: nothing is recorded."""
        before, self._pauses = self._pauses, True
        try:
            yield
        finally:
            self._pauses = before

    @contextlib.contextmanager
    def adding_in_place(self) -> Iterator[None]:
        """Inside, the sum of two tensors takes over the first one's memory.

        Not so where the program's own dispatch mode, such as a selective checkpoint's, would see the sum:
        PyTorch then leaves operands as they are (areAnyTensorSubclassLike).
        """
        others = [mode for mode in _get_current_dispatch_mode_stack() if not isinstance(mode, _OWN_MODES)]
        before, self._adds_in_place = self._adds_in_place, not others
        try:
            yield
        finally:
            self._adds_in_place = before

    def _accumulate(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, certain: bool) -> Any:
        """Add two tensors; where CUDA does so in place, the sum takes over the first one's memory."""
        recorder = self.recorder
        first = args[0]
        in_place = recorder.is_device(first) and (certain or adds_in_place(first, args[1]))
        result = self.fakes.run(ADD, args, kwargs)
        if in_place and result.dtype == first.dtype and result.shape == first.shape:
            recorder.adopt(result, recorder.release(first))
        else:
            recorder.watch(result)
        return result


_OWN_MODES = (RecordMode, FakeTensorMode)
_PLAIN = (torch.nn.Parameter, torch.Tensor)
_HOST_KINDS = (FakeTensor, *_PLAIN)


@cache
def _takes_tensors(func: Any) -> bool:
    """Whether the op computes on tensors: given numbers alone, it makes host tensors of them (`torch.div(7, 2)`)."""
    return any(str(argument.type) == "Tensor" for argument in func._schema.arguments)


def _is_large(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    size = 1
    shape = args[0] if args else kwargs.get("size", ())
    for value in shape if isinstance(shape, list | tuple | torch.Size) else ():
        size *= int(value)
    return size * 4 > _HOST_FAKE_FROM_BYTES
