"""One trial in a process of its own.

Run as ``python -m trainmem_backend.measure.worker --results FD``. It imports everything first and then
waits on standard input, without a context on the device, so that its start overlaps with the trial
before it. Messages out are JSON lines on the file descriptor: ``ready``, ``open`` (what the device is;
or in its place ``no_cuda`` or ``failed``), ``part`` (figures so far) and ``done``. When standard input
closes, the parent is gone and the worker ends at once, whatever it is doing.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

__all__ = ["Worker", "main"]


class Worker:
    """Answers the parent's messages; see the module."""

    def __init__(self, out: TextIO, *, pretend_bytes: int | None) -> None:
        from trainmem_backend.measure.device import CudaDevice, PretendedDevice
        from trainmem_backend.measure.nvml import Nvml

        self._out = out
        self._pretended = pretend_bytes is not None
        self._device = PretendedDevice(pretend_bytes) if pretend_bytes is not None else CudaDevice()
        self._nvml = Nvml()
        self._before: dict[str, Any] = {}
        self._facts: Any = None
        self._cap_bytes: int | None = None

    def say(self, event: str, **values: Any) -> None:
        """One message to the parent."""
        self._out.write(json.dumps({"event": event, **values}) + "\n")
        self._out.flush()

    def open(self) -> None:
        """Create the context and say what the device is."""
        from dataclasses import asdict

        from trainmem_backend.measure.environment import describe
        from trainmem_backend.measure.hostmemory import read_host_memory

        self._before = {
            "memory_used_bytes": self._nvml.memory_used_bytes().value,
            "available_bytes": read_host_memory().available_bytes,
        }
        self._facts = self._device.open()
        environment = describe(self._facts, self._nvml, pretended=self._pretended)
        self.say("open", facts=asdict(self._facts), environment=environment)

    def run(self, message: Mapping[str, Any]) -> None:
        """Measure the trial and say how it went."""
        from trainmem_backend.measure.guard.cap import Cap
        from trainmem_backend.measure.outcome import of_exception
        from trainmem_backend.measure.ranks import start_others
        from trainmem_backend.measure.trial import Trial

        trial = Trial.from_json(message["trial"])
        self._cap_bytes = message.get("cap_bytes")
        if self._cap_bytes is not None:
            self._device.hold_to(Cap(cap_bytes=self._cap_bytes, reason=""))
        if trial.ranks > 1:
            start_others(message, trial.ranks, self._device.kind)
        try:
            measured = self._measure(trial)
        except Exception as error:
            ending = of_exception(type(error).__name__, str(error))
            details = self._at_failure()
            self.say("done", outcome=ending.outcome, reason=ending.reason, measured=None, at_failure=details)
            return
        self.say("done", outcome="ok", reason=None, measured=measured)

    def _measure(self, trial: Any) -> dict[str, Any]:
        from trainmem_backend.measure.build import build
        from trainmem_backend.measure.tasks.curve import measure_curve
        from trainmem_backend.measure.tasks.machine import measure_machine
        from trainmem_backend.measure.tasks.preflight import try_feature
        from trainmem_backend.measure.tasks.step import measure_step

        def made(job: Any) -> Any:
            return build(job, self._device.kind, ranks=trial.ranks, room_bytes=self._cap_bytes)

        match trial.kind:
            case "step":
                return measure_step(
                    trial,
                    self._device,
                    made,
                    emit=lambda part: self.say("part", measured=part),
                    quiet=lambda: self.say("timing"),
                )
            case "curve":
                return measure_curve(trial, self._device, made)
            case "machine":
                return measure_machine(self._device, self._facts, self._nvml, self._before)
            case "preflight":
                return try_feature(trial.options["feature"])
        raise ValueError(f"kind: {trial.kind!r} is not measured by a worker")

    def _at_failure(self) -> dict[str, Any] | None:
        """The counters when it failed, where the device still answers."""
        try:
            return {
                "allocated_bytes": self._device.allocated_bytes(),
                "peak_allocated_bytes": self._device.peak_allocated_bytes(),
                "peak_reserved_bytes": self._device.peak_reserved_bytes(),
            }
        except Exception:
            return None


def _import_everything(libraries: Sequence[str]) -> None:
    """What a trial will need, so that none of it is loaded on the trial's time.

    ``libraries`` are those that any trial of the run needs: each takes a second, and most runs need none.
    """
    # transformers loads lazily: the base class brings what every model needs, and most of what takes time.
    from transformers import AutoModelForCausalLM, PreTrainedModel  # noqa: F401

    import trainmem_backend.measure.build
    import trainmem_backend.measure.tasks.curve
    import trainmem_backend.measure.tasks.step  # noqa: F401

    for name in libraries:
        try:
            __import__(name)
        except Exception as error:
            # Preflight reports what is wrong with it; only the rows that need it are lost.
            print(f"{name}: {error}", file=sys.stderr)  # noqa: T201


def _listen(lines: queue.Queue[dict[str, Any]]) -> None:
    for line in sys.stdin:
        lines.put(json.loads(line))
    os._exit(1)


def main(arguments: list[str] | None = None) -> int:
    """Serve one trial."""
    parser = argparse.ArgumentParser(description="Measure one trial; started by trainmem measure.")
    parser.add_argument("--results", type=int, required=True, help="file descriptor for the answers")
    parser.add_argument("--pretend-bytes", type=int, help="size of a device to pretend")
    parser.add_argument(
        "--import", dest="libraries", action="append", default=[], help="a library, beforehand"
    )
    parsed = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    _import_everything(parsed.libraries)
    from trainmem_backend.measure.device import NoCudaError

    with os.fdopen(parsed.results, "w", encoding="utf-8") as out:
        worker = Worker(out, pretend_bytes=parsed.pretend_bytes)
        messages: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=_listen, args=(messages,), daemon=True).start()
        worker.say("ready")
        while True:
            message = messages.get()
            match message["do"]:
                case "open":
                    try:
                        worker.open()
                    except NoCudaError as error:
                        worker.say("no_cuda", reason=str(error))
                        return 1
                    except Exception as error:
                        worker.say("failed", reason=f"{type(error).__name__}: {error}")
                        return 1
                case "run":
                    worker.run(message)
                    return 0
                case "quit":
                    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # Tearing a context down politely costs a second, and the kernel takes everything back anyway.
    os._exit(code)
