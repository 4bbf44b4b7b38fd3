"""One's own training program, traced: any module, loss and torch optimizer, written for CUDA as it stands."""

from __future__ import annotations

import contextlib
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from trainmem.recording import Recording, counters
from trainmem_backend.trace.errors import TraceError
from trainmem_backend.trace.gpu import gpu_traits
from trainmem_backend.trace.session import TraceSession, tracing

__all__ = ["trace_program", "trace_script", "versions"]


def versions() -> str:
    """What a trace runs on, in words."""
    return f"torch {torch.__version__}, transformers {metadata.version('transformers')}"


class _Enough(BaseException):
    """Ends a program after its last step; no ``except Exception`` of the program holds it."""


def trace_program(
    program: Callable[[], None], *, device: str = "h200", steps: int = 3
) -> tuple[Recording, int]:
    """Run ``program`` on a virtual ``device`` until its optimizer has stepped ``steps`` times.

    The program builds its model and batches on ``cuda`` and trains; nothing is computed. Answers what it
    allocated and freed, and how many values it asked for that a replay does not have (``loss.item()``), which
    were answered with a harmless one. A step begins with the first forward after the optimizer's. Raises
    `TraceError` where the program never stepped an optimizer.
    """
    with tracing(gpu_traits(device)) as session:
        cut = _Cut(session, steps)
        session.recorder.mark(0, "setup")
        with _watching(session, cut), contextlib.suppress(_Enough):
            program()
        if not cut.steps_done:
            raise TraceError("program: it never called optimizer.step(), so there is no step to show")
        recording = session.recorder.recording
        if cut.end is not None:
            # what the program lets go of while it unwinds is no part of the step
            del recording.events[cut.end :]
        recording.parameters = sum(p.numel() for p in cut.parameters)
        recording.trainable_parameters = sum(p.numel() for p in cut.parameters if p.requires_grad)
        session.recorder.recording = Recording()
    return recording, session.record_mode.answers.asked


def trace_script(
    path: Path, arguments: list[str], *, device: str = "h200", steps: int = 3
) -> tuple[Recording, int]:
    """Trace a script as ``python path arguments`` would run it. Raises `TraceError` where it fails."""

    def run() -> None:
        with mock.patch.object(sys, "argv", [str(path), *arguments]):
            try:
                runpy.run_path(str(path), run_name="__main__")
            except SystemExit as end:
                if end.code:
                    raise TraceError(f"{path.name}: it exits with {end.code}") from None
            except Exception as error:
                raise TraceError(_what_failed(path, error)) from error

    with mock.patch.object(sys, "path", [str(path.resolve().parent), *sys.path]):
        return trace_program(run, device=device, steps=steps)


def _what_failed(path: Path, error: Exception) -> str:
    lines = [
        entry.lineno for entry in traceback.extract_tb(error.__traceback__) if entry.filename == str(path)
    ]
    at = f", line {lines[-1]}" if lines else ""
    return f"{path.name}{at}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"


class _Cut:
    """Cuts a running program into steps and phases by what it calls."""

    def __init__(self, session: TraceSession, limit: int) -> None:
        self.session = session
        self.limit = limit
        self.step = 0
        self.micro = 0
        self.phase = "setup"
        self.steps_done = 0
        self.end: int | None = None
        self.parameters: list[torch.nn.Parameter] = []
        self._known: set[int] = set()

    def forward(self, module: torch.nn.Module, _: object) -> None:
        """A module is called: the outermost one begins a forward, unless one runs or gradients are off."""
        if not torch.is_grad_enabled() or self.phase in ("forward", "running backward"):
            return
        if id(module) not in self._known:
            self._known |= {id(part) for part in module.modules()}
            self.session.record_mode.attribution.name(module)
            self.session.record_mode.bucketing.weights(module)
            self.parameters += [p for p in module.parameters() if all(p is not q for q in self.parameters)]
        if self.phase == "backward":
            self.micro += 1
        else:
            self.step, self.micro = self.step + 1, 0
        self._begin("forward")

    @contextlib.contextmanager
    def backward(self) -> Iterator[None]:
        """Backward runs inside."""
        bucketing = self.session.record_mode.bucketing
        if self.step == 0:
            self.step = 1
        bucketing.saved()
        self._begin("backward")
        self.phase = "running backward"
        yield
        self.phase = "backward"
        bucketing.gradients(self.parameters)

    def optimizer_begins(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """A torch optimizer is about to step."""
        known = {id(parameter) for parameter in self.parameters}
        for group in optimizer.param_groups:
            self.parameters += [p for p in group["params"] if id(p) not in known]
        self.session.record_mode.bucketing.gradients(self.parameters)
        if self.phase != "optimizer":
            self._begin("optimizer")

    def optimizer_ends(self, *_: object) -> None:
        """It has stepped: what it left behind is its state."""
        bucketing = self.session.record_mode.bucketing
        bucketing.gradients(self.parameters)
        bucketing.state()
        self.session.record_mode.attribution.forget_nodes()
        self.steps_done = self.step

    def zero_grad(self) -> None:
        """Gradients are dropped; right after the optimizer that is a phase of its own."""
        if self.phase == "optimizer":
            self._begin("zero_grad")

    def zeroed(self) -> None:
        """Gradients have been dropped; a program that has done its last step ends here."""
        if self.phase == "zero_grad" and self.steps_done >= self.limit:
            self._stop()

    def next_begins(self) -> None:
        """Something after the last step's optimizer begins."""
        if self.steps_done >= self.limit and self.phase in ("optimizer", "zero_grad"):
            self._stop()

    def _stop(self) -> None:
        self.end = len(self.session.recorder.recording.events)
        raise _Enough

    def _begin(self, phase: Any) -> None:
        self.phase = phase
        self.session.recorder.mark(self.step, phase, self.micro)
        self.session.record_mode.bucketing.start()


@contextlib.contextmanager
def _watching(session: TraceSession, cut: _Cut) -> Iterator[None]:
    run_backward = torch.autograd._engine_run_backward  # type: ignore[attr-defined]
    zero_grad = torch.optim.Optimizer.zero_grad

    def backward(*args: Any, **kwargs: Any) -> Any:
        with cut.backward():
            return run_backward(*args, **kwargs)

    def zeroing(optimizer: torch.optim.Optimizer, set_to_none: bool = True) -> None:
        cut.zero_grad()
        zero_grad(optimizer, set_to_none)
        cut.zeroed()

    def called(module: torch.nn.Module, inputs: object) -> None:
        cut.next_begins()
        cut.forward(module, inputs)

    def uncompiled(model: Any = None, **_: object) -> Any:
        return model if model is not None else lambda function: function

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch.autograd, "_engine_run_backward", backward))
        stack.enter_context(mock.patch.object(torch.optim.Optimizer, "zero_grad", zeroing))
        stack.enter_context(mock.patch.object(torch, "compile", uncompiled))
        for name, value in _memory_counters(session).items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        for hook in (
            register_module_forward_pre_hook(called),
            register_optimizer_step_pre_hook(cut.optimizer_begins),
            register_optimizer_step_post_hook(cut.optimizer_ends),
        ):
            stack.callback(hook.remove)
        yield


def _memory_counters(session: TraceSession) -> dict[str, Callable[..., Any]]:
    """`torch.cuda`'s memory queries, answered from what has been recorded so far."""
    since = 0

    def curves() -> tuple[list[int], list[int]]:
        result = counters(session.recorder.recording)
        return result.allocated or [0], result.reserved or [0]

    def now(which: int) -> Callable[..., int]:
        return lambda *_, **__: curves()[which][-1]

    def most(which: int) -> Callable[..., int]:
        return lambda *_, **__: max(curves()[which][max(since - 1, 0) :], default=0)

    def reset(*_: object, **__: object) -> None:
        nonlocal since
        since = len(session.recorder.recording.events)

    def free_and_total(*_: object, **__: object) -> tuple[int, int]:
        total = session.record_mode.traits.total_bytes
        return total - curves()[1][-1], total

    return {
        "memory_allocated": now(0),
        "max_memory_allocated": most(0),
        "memory_reserved": now(1),
        "max_memory_reserved": most(1),
        "reset_peak_memory_stats": reset,
        "reset_max_memory_allocated": reset,
        "mem_get_info": free_and_total,
    }
