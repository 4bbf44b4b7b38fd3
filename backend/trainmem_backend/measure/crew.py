"""The workers of a run and the machine they found."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainmem_backend.measure.bench import Bench, WorkerGone
from trainmem_backend.measure.guard.cap import Cap, DeviceFacts, cap_of
from trainmem_backend.measure.guard.gate import Gate, named_holders
from trainmem_backend.measure.hostmemory import low_free_warning, read_host_memory, told
from trainmem_backend.measure.nvml import Nvml
from trainmem_backend.measure.process import WORKER_COMMAND, WorkerProcess
from trainmem_backend.measure.settings import Settings, worker_environment, workers_ready

__all__ = ["Crew", "GateClosed", "Machine", "NoDevice"]

_OPEN_SECONDS = 120.0
_WAITING_ON_INTEGRATED = 2


class NoDevice(ValueError):
    """There is nothing here to measure on; the message says what would help."""


class GateClosed(RuntimeError):
    """The memory of the trial before did not come back; the message says who holds it."""


@dataclass(kw_only=True, slots=True)
class Machine:
    """What the first worker found; the gate knows the memory that was in use before any trial."""

    facts: DeviceFacts
    environment: dict[str, Any]
    gate: Gate


class Crew:
    """Hands out workers whose context exists, one for each trial. ``meminfo`` is replaced by tests."""

    def __init__(
        self,
        settings: Settings,
        *,
        total: int,
        note: Callable[[str], None],
        nvml: Nvml | None = None,
        worker_command: Sequence[str] = WORKER_COMMAND,
        meminfo: Path = Path("/proc/meminfo"),
    ) -> None:
        self.meminfo = meminfo
        self._settings = settings
        self._note = note
        self._nvml = nvml or Nvml()
        self._lock = threading.RLock()
        self._machine: Machine | None = None
        self._opened: WorkerProcess | None = None
        self._busy: set[WorkerProcess] = set()
        self._used_before = {"device": self._nvml.memory_used_bytes().value, "host": self._used_on_host()}
        command = list(worker_command)
        if settings.pretend_bytes is not None:
            command += ["--pretend-bytes", str(settings.pretend_bytes)]
        environment = worker_environment(settings)
        ready, most = workers_ready(settings.overlap, os.cpu_count() or 1)
        self._bench = Bench(lambda: WorkerProcess(command, environment), ready=ready, total=total, most=most)

    def machine(self) -> Machine:
        """The machine; opens a first worker, which then waits for the next trial, where none was."""
        with self._lock:
            if self._machine is None:
                self.give_back(self.open())
            assert self._machine is not None
            return self._machine

    def expect(self, more: int) -> None:
        """So many more trials will be run than was said at first."""
        self._bench.expect(more)

    def open(self) -> WorkerProcess:
        """A worker with its context on the device. Raises `WorkerGone`, and `NoDevice` where there is no CUDA."""
        with self._lock:
            if self._opened is not None:
                worker, self._opened = self._opened, None
                return worker
        worker = self._bench.take()
        worker.send(do="open")
        try:
            message = worker.receive(_OPEN_SECONDS)
        except TimeoutError:
            message = None
        if message is None or message.get("event") != "open":
            code, words = self.dismiss(worker)
            if message is not None and message.get("event") == "no_cuda":
                raise NoDevice(
                    f"device: {message['reason']}; measuring needs a CUDA GPU, and "
                    "--pretend 8GiB exercises the harness without one"
                )
            said = (message or {}).get("reason") or f"exit {code}; {words.strip()[-600:]}"
            raise WorkerGone(f"no device to measure on: {said}")
        with self._lock:
            if self._machine is None:
                self._machine = self._found(message)
            self._machine.environment = dict(message["environment"])
            self._busy.add(worker)
        return worker

    def give_back(self, worker: WorkerProcess) -> None:
        """Return a worker that was opened and not used, for the next trial."""
        with self._lock:
            if self._opened is None:
                self._opened = worker
                return
        worker.send(do="quit")
        self.dismiss(worker)

    def dismiss(self, worker: WorkerProcess) -> tuple[int, str]:
        """End a worker; its exit code and last words."""
        code = worker.end()
        words = worker.last_words()
        worker.close()
        with self._lock:
            self._busy.discard(worker)
        return code, words

    def pass_gate(self) -> None:
        """Wait until the last trial's memory is back. Raises `GateClosed`."""
        with self._lock:
            # A worker that is open already passed, and now holds its context.
            if self._machine is None or self._opened is not None:
                return
            result = self._machine.gate.wait()
        if not result.passed:
            raise GateClosed(str(result.reason))

    def cap(self) -> Cap:
        """What one trial's allocator may reserve now."""
        return cap_of(
            self.machine().facts,
            available_bytes=read_host_memory(self.meminfo.parent).available_bytes,
            floor_bytes=self._settings.floor_bytes,
            capacity_bytes=self._settings.capacity_bytes,
        )

    def quiet(self) -> None:
        """Nothing of this run moves but the trial at work, until `resume`."""
        self._bench.pause()

    def resume(self) -> None:
        """The next workers go on with their imports."""
        self._bench.resume()

    def room_bytes(self) -> int:
        """What trials beside each other may take together; a machine that stands in for another has all
        of it."""
        facts = self.machine().facts
        return self.cap().cap_bytes if facts.integrated else facts.free_bytes

    def kill(self) -> None:
        """End the workers that are at work."""
        with self._lock:
            for worker in self._busy:
                worker.kill()

    def close(self) -> None:
        """End the workers that wait."""
        self._bench.close()
        if self._opened is not None:
            self._opened.kill()
            self.dismiss(self._opened)
            self._opened = None

    def _found(self, message: Mapping[str, Any]) -> Machine:
        facts = DeviceFacts.from_json(message["facts"])
        if facts.integrated:
            host = read_host_memory(self.meminfo.parent)
            self._note(told(host))
            warning = low_free_warning(host)
            if warning is not None:
                self._note(warning)
            # What they have imported lies in the memory that is measured.
            self._bench.keep_at_most(max(_WAITING_ON_INTEGRATED, self._settings.overlap))
        gate = Gate.for_device(
            integrated=facts.integrated,
            used=self._used_on_host if facts.integrated else lambda: self._nvml.memory_used_bytes().value,
            holders=lambda: named_holders(self._nvml.holders().value or []),
        )
        gate.baseline_bytes = self._used_before["host" if facts.integrated else "device"]
        return Machine(facts=facts, environment=dict(message["environment"]), gate=gate)

    def _used_on_host(self) -> int | None:
        host = read_host_memory(self.meminfo.parent)
        if host.total_bytes is None or host.available_bytes is None:
            return None
        return host.total_bytes - host.available_bytes
