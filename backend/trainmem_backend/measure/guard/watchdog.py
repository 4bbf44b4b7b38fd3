"""A process of its own that watches the host's memory and stops the trial before the machine hangs.

It reads MemAvailable every few hundredths of a second, because one such machine was seen to lose 21 GiB
in 1.5 s. When the floor is reached it writes the trial's row first, then kills: if the machine hangs all
the same, the row is there after the reboot. It imports nothing heavy and holds its file descriptors
open, so that it needs no memory at the moment when there is none.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

__all__ = ["EXIT_STOPPED", "Watch", "main", "watch"]

EXIT_STOPPED = 3
DEFAULT_INTERVAL_SECONDS = 0.05
LONGEST_INTERVAL_SECONDS = 0.1

# A disk that hangs with the machine must not keep the trial alive.
_LONGEST_SYNC_SECONDS = 0.25
_FIELD = b"MemAvailable:"


@dataclass(frozen=True, kw_only=True, slots=True)
class Watch:
    """What is watched: the process group of ``pid``, until available memory is under ``floor_bytes``."""

    pid: int
    floor_bytes: int
    interval_seconds: float
    meminfo: str = "/proc/meminfo"


def available_bytes(descriptor: int) -> int | None:
    """MemAvailable from an open ``/proc/meminfo``; None where the line is missing."""
    text = os.pread(descriptor, 4096, 0)
    start = text.find(_FIELD)
    if start < 0:
        return None
    return int(text[start + len(_FIELD) :].split(None, 1)[0]) * 1024


def watch(what: Watch, stop: Callable[[int], None]) -> bool:
    """Watch until the process is gone (False) or the floor is reached and ``stop(available)`` was called
    (True)."""
    try:
        process = os.pidfd_open(what.pid)
    except ProcessLookupError:
        return False
    memory = os.open(what.meminfo, os.O_RDONLY)
    try:
        while True:
            now = available_bytes(memory)
            if now is not None and now < what.floor_bytes:
                stop(now)
                return True
            if select.select([process], [], [], what.interval_seconds)[0]:
                return False
    finally:
        os.close(memory)
        os.close(process)


def _row(template: Mapping[str, Any], what: Watch, available: int, lowest_read_seconds: float) -> bytes:
    row = {
        **template,
        "outcome": "guard_stopped",
        "reason": (
            f"available memory fell to {available:,} bytes, under the floor of {what.floor_bytes:,}; "
            "stopped before the machine could hang"
        ),
        "guard": {
            **(template.get("guard") or {}),
            "available_bytes": available,
            "floor_bytes": what.floor_bytes,
            "interval_seconds": what.interval_seconds,
            "watched_seconds": round(lowest_read_seconds, 3),
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        },
    }
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"


def main(arguments: list[str] | None = None) -> int:
    """Run as ``python -m trainmem_backend.measure.guard.watchdog``; the row's template comes in on
    standard input.

    Exits 0 when the watched process ended by itself, `EXIT_STOPPED` when it was stopped.
    """
    parser = argparse.ArgumentParser(description="Stop a process group when the host's memory runs low.")
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--floor-bytes", type=int, required=True)
    parser.add_argument("--interval-seconds", type=float, default=DEFAULT_INTERVAL_SECONDS)
    parser.add_argument("--rows", required=True)
    parser.add_argument("--meminfo", default="/proc/meminfo")
    parsed = parser.parse_args(arguments)
    what = Watch(
        pid=parsed.pid,
        floor_bytes=parsed.floor_bytes,
        interval_seconds=min(parsed.interval_seconds, LONGEST_INTERVAL_SECONDS),
        meminfo=parsed.meminfo,
    )
    template = json.loads(sys.stdin.readline())
    rows = os.open(parsed.rows, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    low, synced = threading.Event(), threading.Event()

    def sync() -> None:
        low.wait()
        os.fsync(rows)
        synced.set()

    threading.Thread(target=sync, daemon=True).start()
    began = time.monotonic()

    def stop(available: int) -> None:
        os.write(rows, _row(template, what, available, time.monotonic() - began))
        low.set()
        synced.wait(_LONGEST_SYNC_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(what.pid, signal.SIGKILL)

    # Interrupting the run from the keyboard must not leave a trial unguarded while it is being ended.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("watching", flush=True)  # noqa: T201
    stopped = watch(what, stop)
    if stopped:
        synced.wait(10)
    return EXIT_STOPPED if stopped else 0


if __name__ == "__main__":
    sys.exit(main())
