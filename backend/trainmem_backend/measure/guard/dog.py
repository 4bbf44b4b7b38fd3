"""The watchdog seen from the parent."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainmem_backend.measure.guard.watchdog import EXIT_STOPPED

__all__ = ["Watchdog"]


class Watchdog:
    """Watches the process group of ``pid`` from a process of its own, until that group is gone."""

    def __init__(
        self,
        *,
        pid: int,
        floor_bytes: int,
        interval_seconds: float,
        rows: Path,
        row: Mapping[str, Any],
        meminfo: Path = Path("/proc/meminfo"),
    ) -> None:
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "trainmem_backend.measure.guard.watchdog",
                *("--pid", str(pid)),
                *("--floor-bytes", str(floor_bytes)),
                *("--interval-seconds", str(interval_seconds)),
                *("--rows", str(rows)),
                *("--meminfo", str(meminfo)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(dict(row)).encode() + b"\n")
        self._process.stdin.close()
        # A trial must not start before it is watched.
        self._process.stdout.readline()

    def stopped_it(self) -> bool:
        """After the watched group ended: whether the watchdog ended it and wrote its row."""
        try:
            return self._process.wait(30) == EXIT_STOPPED
        except subprocess.TimeoutExpired:
            self._process.kill()
            return False
        finally:
            assert self._process.stdout is not None
            self._process.stdout.close()
