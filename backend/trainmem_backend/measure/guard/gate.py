"""Memory must be back before the next trial starts, or that trial would be measured on a smaller machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from trainmem.units import GIB, MIB, format_gib
from trainmem_backend.measure.nvml import Holder

__all__ = ["Gate", "GateResult", "named_holders"]

_POLL_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class GateResult:
    """Whether the memory came back, after how long, and if not who holds it."""

    passed: bool
    waited_seconds: float
    reason: str | None = None


@dataclass(kw_only=True, slots=True)
class Gate:
    """Waits until ``used()`` is back at what it was before the first trial, within ``slack_bytes``.

    ``used`` answers None where the machine does not say; the gate is then open. Memory of an ended
    process can take minutes to come back on an integrated GPU.
    """

    used: Callable[[], int | None]
    holders: Callable[[], list[str]]
    slack_bytes: int
    timeout_seconds: float
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    baseline_bytes: int | None = None

    @classmethod
    def for_device(
        cls, *, integrated: bool, used: Callable[[], int | None], holders: Callable[[], list[str]]
    ) -> Gate:
        """Slack and patience for the kind of device: host memory wanders, a card's does not."""
        if integrated:
            return cls(used=used, holders=holders, slack_bytes=4 * GIB, timeout_seconds=300)
        return cls(used=used, holders=holders, slack_bytes=256 * MIB, timeout_seconds=60)

    def remember(self) -> None:
        """Take the memory in use now as the baseline, if there is none yet."""
        if self.baseline_bytes is None:
            self.baseline_bytes = self.used()

    def wait(self) -> GateResult:
        """Wait for the baseline, until the timeout."""
        if self.baseline_bytes is None:
            return GateResult(passed=True, waited_seconds=0.0)
        began = self.clock()
        while True:
            now = self.used()
            waited = self.clock() - began
            if now is None or now <= self.baseline_bytes + self.slack_bytes:
                return GateResult(passed=True, waited_seconds=waited)
            if waited >= self.timeout_seconds:
                return GateResult(
                    passed=False,
                    waited_seconds=waited,
                    reason=(
                        f"memory did not come back in {waited:.0f} s: {format_gib(now)} in use, "
                        f"{format_gib(self.baseline_bytes)} before the first trial; held by "
                        f"{', '.join(self.holders()) or 'no process that the driver names'}"
                    ),
                )
            self.sleep(_POLL_SECONDS)


def named_holders(holders: list[Holder]) -> list[str]:
    """``"python3 (pid 812, 108 GiB)"`` for every process that holds memory of the device."""
    said = []
    for holder in holders:
        try:
            with open(f"/proc/{holder.pid}/comm", encoding="utf-8") as file:
                name = file.read().strip()
        except OSError:
            name = "a process that is gone or hidden"
        size = "size not told" if holder.used_bytes is None else format_gib(holder.used_bytes)
        said.append(f"{name} (pid {holder.pid}, {size})")
    return said
