"""Everything that must be in place while a program is traced."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from trainmem_backend.trace.accumulation import last_reference
from trainmem_backend.trace.autocast import cuda_autocast, seen_by_python_kernels
from trainmem_backend.trace.bitsandbytes import cuda_kernels, virtual_bitsandbytes
from trainmem_backend.trace.composites import cuda_composites
from trainmem_backend.trace.distributed import leaving_groups, virtual_sharding
from trainmem_backend.trace.errors import TraceError
from trainmem_backend.trace.fakes import hinting_at_cuda
from trainmem_backend.trace.gpu import GpuTraits
from trainmem_backend.trace.libraries import patched_libraries
from trainmem_backend.trace.liger import virtual_liger
from trainmem_backend.trace.modules import virtual_modules
from trainmem_backend.trace.record_mode import RecordMode
from trainmem_backend.trace.recorder import Recorder
from trainmem_backend.trace.stand_ins import stand_in_or_note
from trainmem_backend.trace.virtual_answers import patched_cuda
from trainmem_backend.trace.virtual_cuda import VirtualCuda
from trainmem_backend.trace.virtual_cudnn import virtual_cudnn

__all__ = ["TraceSession", "tracing"]

_ONE_AT_A_TIME = threading.Lock()


class TraceSession:
    """A trace in progress."""

    def __init__(self, traits: GpuTraits, fake_mode: FakeTensorMode) -> None:
        self.recorder = Recorder()
        self.record_mode = RecordMode(self.recorder, traits, fake_mode)
        self.cuda = VirtualCuda(self.record_mode)
        self.record_mode.function_mode = self.cuda


@contextlib.contextmanager
def tracing(traits: GpuTraits) -> Iterator[TraceSession]:
    """Code inside runs on a virtual GPU and its allocations are recorded; everything is as before at the end.

    Raises `TraceError` where another trace runs: what is patched belongs to the whole process.
    """
    if not _ONE_AT_A_TIME.acquire(blocking=False):
        raise TraceError(
            "trace: another one runs in this process; trace one after the other, or in processes"
        )
    try:
        with _tracing(traits) as session:
            yield session
    finally:
        _ONE_AT_A_TIME.release()


@contextlib.contextmanager
def _tracing(traits: GpuTraits) -> Iterator[TraceSession]:
    # Before anything is patched: the first imports much of PyTorch, the second runs a backward of its own.
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    last_reference()
    session = TraceSession(traits, fake_mode)
    with contextlib.ExitStack() as stack:
        stack.callback(torch.clear_autocast_cache)
        stack.enter_context(cuda_autocast())
        stack.enter_context(cuda_composites(session.record_mode))
        stack.enter_context(patched_cuda(session.cuda))
        stack.enter_context(virtual_cudnn())
        stack.enter_context(hinting_at_cuda(session.recorder.is_device))
        stack.enter_context(patched_libraries(session.recorder.note))
        stack.enter_context(session.record_mode.attribution.watching())
        stack.enter_context(virtual_modules(fake_mode))
        stack.enter_context(virtual_liger())
        stack.enter_context(leaving_groups(session.recorder))
        stack.enter_context(virtual_sharding(session.record_mode))
        if "bitsandbytes" in sys.modules:
            stand_in_or_note(stack, _bitsandbytes(session), "bitsandbytes", session.recorder.note)
        stack.enter_context(fake_mode)
        stack.enter_context(session.record_mode)
        stack.enter_context(session.cuda)
        yield session


@contextlib.contextmanager
def _bitsandbytes(session: TraceSession) -> Iterator[None]:
    kernels = cuda_kernels()
    with virtual_bitsandbytes(session.recorder):
        session.record_mode.python_kernels = kernels
        with seen_by_python_kernels(session.record_mode):
            yield
