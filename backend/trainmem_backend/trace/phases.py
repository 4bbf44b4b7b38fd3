"""Cuts a running program into steps and phases by what it calls."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from trainmem.recording import Phase
from trainmem_backend.trace.errors import TraceError
from trainmem_backend.trace.session import TraceSession

__all__ = ["EndOfTraceError", "StepCutter"]


class EndOfTraceError(BaseException):
    """Ends a program after its last step; no ``except Exception`` of the program holds it."""


class StepCutter:
    """A step begins with the first forward after an optimizer's step.

    What runs between backward and the optimizer, such as clipping, is the optimizer's phase. Gradients dropped
    right after it are a phase of their own; a forward without gradients, as an evaluation's, is part of
    whatever phase it interrupts. Optimizers that gradients' hooks call are part of backward, and an empty phase of
    theirs ends the step. An optimizer that is given a closure steps when the closure has returned; one
    that calls it again, as L-BFGS does, adds a micro batch to its step.
    """

    def __init__(self, session: TraceSession, steps: int, progress: Callable[[float], None]) -> None:
        self.steps_done = 0
        self.end: int | None = None
        self.parameters: list[torch.nn.Parameter] = []
        self._recorder = session.recorder
        self._bucketing, self._attribution = session.record_mode.bucketing, session.record_mode.attribution
        self._limit, self._progress = steps, progress
        self._step = self._micro = 0
        self._phase: Phase = "setup"
        self._runs = False
        self._thread = threading.get_ident()
        self._closures = 0
        self._stepped_in_backward = False
        self._backward_ended = 0
        self._known: set[int] = set()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Follow what the program inside calls."""
        run_backward = torch.autograd._engine_run_backward  # type: ignore[attr-defined]
        owners: tuple[Any, ...] = (torch.optim.Optimizer, torch.nn.Module)

        def backward(*args: Any, **kwargs: Any) -> Any:
            if self._runs:
                return run_backward(*args, **kwargs)
            with self._backward():
                return run_backward(*args, **kwargs)

        def zeroing(zero_grad: Callable[..., None]) -> Callable[..., None]:
            def zero(owner: Any, set_to_none: bool = True) -> None:
                self._zero_grad_begins()
                zero_grad(owner, set_to_none)
                self._zero_grad_ends()

            return zero

        with contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch.object(torch.autograd, "_engine_run_backward", backward))
            for owner in owners:
                stack.enter_context(mock.patch.object(owner, "zero_grad", zeroing(owner.zero_grad)))
            for hook in (
                register_module_forward_pre_hook(self._forward),
                register_optimizer_step_pre_hook(self._optimizer_begins),
                register_optimizer_step_post_hook(self._optimizer_ends),
            ):
                stack.callback(hook.remove)
            yield

    def _forward(self, module: torch.nn.Module, inputs: object) -> None:
        """A module is called: the outermost one begins a forward, unless one runs or gradients are off."""
        if threading.get_ident() != self._thread:
            raise TraceError("threads: a module is called in another thread, which a trace does not follow")
        if self._runs:
            return
        if self.steps_done >= self._limit:
            self._stop()
        if self._phase == "forward" or not torch.is_grad_enabled():
            return
        if id(module) not in self._known:
            self._meet(module)
        self._count(again=self._phase == "backward")
        self._begin("forward")

    def _count(self, *, again: bool) -> None:
        """The next step begins, or, with ``again`` and inside an optimizer's step, its next micro batch."""
        if again or self._closures:
            self._micro += 1
        else:
            self._step, self._micro = self._step + 1, 0

    def _meet(self, module: torch.nn.Module) -> None:
        self._known |= {id(part) for part in module.modules()}
        self._attribution.name(module)
        self._bucketing.weights(module)
        known = {id(parameter) for parameter in self.parameters}
        self.parameters += [p for p in module.parameters() if id(p) not in known]

    @contextlib.contextmanager
    def _backward(self) -> Iterator[None]:
        if self._step == 0 or self._phase in ("optimizer", "zero_grad"):
            # a program without modules: its forward is whatever came before
            self._count(again=False)
        self._bucketing.saved()
        self._bucketing.answered(self._attribution.answered)
        self._begin("backward")
        self._runs = True
        try:
            yield
        finally:
            self._runs = False
        self._bucketing.gradients(self.parameters)
        self._backward_ended = len(self._recorder.recording.events)
        if self._stepped_in_backward:
            self._stepped_in_backward = False
            self._begin("optimizer")
            self._step_ends()

    def _optimizer_begins(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        known = {id(parameter) for parameter in self.parameters}
        for group in optimizer.param_groups:
            # copies on the host, which an offloaded optimizer updates, are no parameters of their own
            self.parameters += [p for p in group["params"] if id(p) not in known and p.device.type != "cpu"]
        if self._runs and self._phase == "backward":
            # called by a hook of a gradient: backward goes on
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not callable(closure):
            self._optimizer_runs()
            return None
        watched = self._watched(closure)
        if "closure" in kwargs:
            return args, {**kwargs, "closure": watched}
        return (args[0], watched, *args[2:]), kwargs

    def _watched(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """``closure`` with the optimizer's phase around it instead of over it."""

        def watched() -> Any:
            self._runs = False
            loss = closure()
            self._closures += 1
            self._optimizer_runs()
            return loss

        return watched

    def _optimizer_runs(self) -> None:
        self._bucketing.gradients(self.parameters)
        if self._phase != "optimizer":
            self._begin("optimizer", self._backward_ended if self._phase == "backward" else None)
        self._runs = True

    def _optimizer_ends(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        if self._runs and self._phase == "backward":
            self._bucketing.owned(optimizer.state.values())
            self._stepped_in_backward = True
            return
        self._runs, self._closures = False, 0
        self._bucketing.gradients(self.parameters)
        self._bucketing.state()
        self._bucketing.owned(optimizer.state.values())
        self._step_ends()

    def _step_ends(self) -> None:
        self._attribution.forget_nodes()
        self.steps_done = self._step
        self._progress(min(1.0, self.steps_done / self._limit))

    def _zero_grad_begins(self) -> None:
        if self._phase == "optimizer" and not self._runs and not self._closures:
            self._begin("zero_grad")

    def _zero_grad_ends(self) -> None:
        if self._phase == "zero_grad" and self.steps_done >= self._limit:
            self._stop()

    def _stop(self) -> None:
        self.end = len(self._recorder.recording.events)
        raise EndOfTraceError

    def _begin(self, phase: Phase, event: int | None = None) -> None:
        self._phase = phase
        self._recorder.mark(self._step, phase, self._micro, event=event)
        self._bucketing.start()
