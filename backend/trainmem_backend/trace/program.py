"""One's own training program, traced: any module, loss and torch optimizer, written for CUDA as it stands."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from unittest import mock

from trainmem.instant import describe_instant
from trainmem.recording import Recording, counters
from trainmem.units import format_bytes
from trainmem_backend.trace.bitsandbytes import elements
from trainmem_backend.trace.errors import TraceError, what_failed
from trainmem_backend.trace.flash_attention import virtual_flash_attention
from trainmem_backend.trace.gpu import gpu_traits
from trainmem_backend.trace.hub_files import hub_or_catalogue
from trainmem_backend.trace.libraries import quiet_libraries
from trainmem_backend.trace.memory_counters import MemoryCounters
from trainmem_backend.trace.phases import EndOfTraceError, StepCutter
from trainmem_backend.trace.pretrained import load_hook_points, weights_without_values
from trainmem_backend.trace.script_host import scripted
from trainmem_backend.trace.script_imports import load_what_it_names
from trainmem_backend.trace.session import tracing
from trainmem_backend.trace.triton import load_triton
from trainmem_backend.trace.virtual_answers import memory_answers

__all__ = ["trace_program", "trace_script", "trace_step"]

State = TypeVar("State")


def trace_step(
    build: Callable[[], State],
    step: Callable[[State], object],
    *,
    device: str = "h200",
    steps: int = 3,
) -> Recording:
    """Trace ``step(build())``, called ``steps`` times: see `trace_program`.

    ``build`` makes the model and the optimizer on "cuda", ``step`` trains them once, batch and ``zero_grad``
    included.
    """

    def program() -> None:
        state = build()
        for _ in range(steps):
            step(state)

    return trace_program(program, device=device, steps=steps)


def trace_program(
    program: Callable[[], object],
    *,
    device: str = "h200",
    steps: int = 3,
    progress: Callable[[float], None] | None = None,
) -> Recording:
    """Run ``program`` on a virtual ``device`` until its optimizer has stepped ``steps`` times.

    The program builds its model and batches on ``cuda`` and trains; nothing is computed. The recording's notes
    say what a replay had to make up, such as the values of ``loss.item()``. Raises `TraceError` where the
    program never stepped an optimizer, and lets its own errors through.
    """
    load_hook_points()
    load_triton()
    with tracing(gpu_traits(device)) as session:
        recorder = session.recorder
        cut = StepCutter(session, steps, progress or (lambda share: None))
        counters = MemoryCounters(recorder, session.record_mode.traits.total_bytes)
        recorder.mark(0, "setup")
        with (
            memory_answers(counters.functions()),
            scripted(recorder.note),
            hub_or_catalogue(recorder.note),
            weights_without_values(recorder.note),
            virtual_flash_attention(session.record_mode.traits.multiprocessors, recorder.note),
            cut.watching(),
            contextlib.suppress(EndOfTraceError),
        ):
            program()
        if not cut.steps_done:
            raise TraceError("program: it never called optimizer.step(), so there is no step to show")
        recording = recorder.recording
        if cut.end is not None:
            # what the program lets go of while it unwinds is no part of the step
            del recording.events[cut.end :]
        recording.parameters = sum(map(elements, cut.parameters))
        recording.trainable_parameters = sum(elements(p) for p in cut.parameters if p.requires_grad)
        asked = session.record_mode.answers.asked
        if asked:
            recorder.note(
                f"the program asked for {asked:,} values, such as loss.item(), and got harmless ones: what it "
                "does because of a value is not what it would do on a GPU"
            )
        recorder.recording = Recording()
    _warn_of_too_little_memory(recording, device)
    return recording


def _warn_of_too_little_memory(recording: Recording, device: str) -> None:
    """The trace has all the memory it asks for; say where the device would have had no more."""
    total = gpu_traits(device).total_bytes
    # rounding and fragmentation cost less than the tensors themselves: most replays are spared
    if 2 * max(counters(recording, detail="fast").allocated, default=0) <= total:
        return
    failed = counters(recording, capacity_bytes=total).oom
    if failed is None:
        return
    mark = [mark for mark in recording.marks if mark.event <= failed.event_index][-1]
    number = sum(event > 0 for event in recording.events[: failed.event_index])
    op, module = recording.op_of[number], recording.module_of[number]
    where = describe_instant(mark.phase, op, module, "optimizer")
    at = f"step {mark.step}: {where}" if mark.step else f"setup, at {op}"
    recording.warnings.append(
        f"{device}: the program would have run out of memory in {at}, asking for "
        f"{format_bytes(failed.tried_bytes)} with {format_bytes(failed.allocated_bytes)} allocated of "
        f"{format_bytes(total)}; the figures are what it needs, not what it would have reached"
    )


def trace_script(
    path: Path,
    arguments: list[str],
    *,
    device: str = "h200",
    steps: int = 3,
    ranks: int = 1,
    progress: Callable[[float], None] | None = None,
) -> Recording:
    """Trace a script as ``python path arguments`` would run it. Raises `TraceError` where it fails.

    ``ranks`` above 1: as the first of so many processes, with what torchrun tells each of them.
    """

    def run() -> None:
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as end:
            if end.code:
                raise TraceError(f"{path.name}: it exits with {end.code}") from None
        except Exception as error:
            raise TraceError(what_failed(error, path)) from error

    with (
        quiet_libraries(),
        mock.patch.object(sys, "argv", [str(path), *arguments]),
        mock.patch.object(sys, "path", [str(path.resolve().parent), *sys.path]),
        mock.patch.dict(os.environ, _rank_environment(ranks) if ranks > 1 else {}),
    ):
        load_what_it_names(path)
        return trace_program(run, device=device, steps=steps, progress=progress)


def _rank_environment(ranks: int) -> dict[str, str]:
    """Nothing is ever sent, so that address and port are only there to be read."""
    return {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "RANK": "0",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29500",
    }
