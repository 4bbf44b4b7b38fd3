"""What a training script finds around it besides the GPU: loaders, files, generators, compilers, processes."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.data import DataLoader

from trainmem_backend.trace.errors import TraceError
from trainmem_backend.trace.evaluation import telling_of_evaluation
from trainmem_backend.trace.one_process import one_process
from trainmem_backend.trace.script_files import files_of_a_script
from trainmem_backend.trace.script_limits import refusing_what_no_trace_replays
from trainmem_backend.trace.triton import unlaunched_kernels

__all__ = ["scripted"]


class _HostGenerator(torch.Generator):
    """A generator of any device draws on the host: nobody uses the numbers."""

    def __new__(cls, device: Any = None) -> _HostGenerator:
        return super().__new__(cls, "cpu")  # type: ignore[call-arg]

    def set_state(self, state: torch.Tensor) -> _HostGenerator:
        """A state that came from another process has no values, and this one stays."""
        if not isinstance(state, FakeTensor):
            super().set_state(state)
        return self


@contextlib.contextmanager
def scripted(note: Callable[[str], None]) -> Iterator[None]:
    """A script inside runs in this process alone, writes no checkpoints, and leaves PyTorch's defaults as they
    were; ``note`` is told what was left out. Raises `TraceError` where another thread used the device: fake tensors
    are recorded in the thread of the trace alone.
    """
    make_loader = DataLoader.__init__
    default_dtype = torch.get_default_dtype()
    own_process, leave = os.getpid(), os._exit

    def in_process(loader: Any, *args: Any, **kwargs: Any) -> None:
        # workers would be processes with a trace of their own, and pages are only pinned for a real GPU
        for name in ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "timeout"):
            kwargs.pop(name, None)
        if len(args) > _WORKERS_POSITION:
            args = (*args[:_WORKERS_POSITION], 0, *args[_WORKERS_POSITION + 1 : _WORKERS_POSITION + 2])
        make_loader(loader, *args, **kwargs)

    def uncompiled(model: Any = None, **_: object) -> Any:
        note("torch.compile is left out: this is the memory of the same program without it")
        return model if model is not None else lambda function: function

    def set_state(state: torch.Tensor) -> None:
        if not isinstance(state, FakeTensor):
            torch.default_generator.set_state(state)

    def exit_with_report(status: int) -> NoReturn:
        # a forked child has no report to make
        if os.getpid() != own_process:
            leave(status)
        raise SystemExit(status)

    lost: list[BaseException] = []
    say = threading.excepthook

    def thread_failed(what: threading.ExceptHookArgs) -> None:
        if what.exc_value is not None and _is_about_the_device(what.exc_value):
            lost.append(what.exc_value)
        else:
            say(what)

    def spawned(function: Callable[..., Any], args: Any = (), nprocs: int = 1, *_: Any, **__: Any) -> None:
        if nprocs > 1:
            note(f"mp.spawn: the first of its {nprocs} processes runs, alone")
        function(0, *args)

    with contextlib.ExitStack() as stack:
        stack.callback(_raise_for_threads, lost)
        stack.enter_context(mock.patch.object(threading, "excepthook", thread_failed))
        stack.enter_context(refusing_what_no_trace_replays())
        stack.enter_context(one_process(note))
        stack.enter_context(telling_of_evaluation(note))
        for owner in (torch.multiprocessing, sys.modules["torch.multiprocessing.spawn"]):
            stack.enter_context(mock.patch.object(owner, "spawn", spawned))
        stack.enter_context(mock.patch.object(os, "_exit", exit_with_report))
        # transformers otherwise reads weights in threads, where no trace would see them arrive on the device
        stack.enter_context(mock.patch.dict(os.environ, {"HF_DEACTIVATE_ASYNC_LOAD": "1"}))
        # a run that never was is no run to report
        stack.enter_context(mock.patch.dict(os.environ, {"WANDB_MODE": "disabled"}))
        stack.enter_context(mock.patch.object(DataLoader, "__init__", in_process))
        stack.enter_context(mock.patch.object(torch, "compile", uncompiled))
        stack.enter_context(mock.patch.object(torch.nn.Module, "compile", uncompiled))
        stack.enter_context(files_of_a_script(note))
        stack.enter_context(unlaunched_kernels(note))
        stack.enter_context(mock.patch.object(torch, "Generator", _HostGenerator))
        for owner in (torch, torch.random):
            stack.enter_context(mock.patch.object(owner, "set_rng_state", set_state))
        stack.callback(torch.set_default_dtype, default_dtype)
        stack.callback(torch.set_grad_enabled, torch.is_grad_enabled())
        stack.callback(torch.set_default_device, None)
        yield


_ABOUT_THE_DEVICE = "cuda|accelerator|no nvidia driver"
"""What PyTorch says of a device that is not there: a build for hosts alone, and one for GPUs without a driver."""


def _is_about_the_device(error: BaseException) -> bool:
    return isinstance(error, TraceError) or bool(re.search(_ABOUT_THE_DEVICE, str(error), re.IGNORECASE))


def _raise_for_threads(lost: list[BaseException]) -> None:
    if lost:
        raise TraceError(
            "threads: another thread than the program's first uses the GPU, and a trace follows only that one"
        ) from lost[0]


_WORKERS_POSITION = 5
