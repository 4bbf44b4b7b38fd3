"""The folder of a run: rows appended with fsync, and a journal that tells what was under way when it
stopped."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainmem.results import SCHEMA

__all__ = ["Interrupted", "RunFolder", "append_line", "boot_id", "drop_torn_line"]

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_STARTS_BEFORE_BLAME = 2


def boot_id() -> str:
    """Changes with every boot of the machine; empty where the system has no such thing."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def append_line(path: Path, data: Mapping[str, Any]) -> None:
    """Append one JSON line and wait until it is on the disk."""
    line = json.dumps(data, separators=(",", ":")) + "\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, line.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def drop_torn_line(path: Path) -> None:
    """Cut off a last line without its end: what a power cut leaves of a write."""
    if not path.exists():
        return
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(data.rfind(b"\n") + 1)
            file.flush()
            os.fsync(file.fileno())


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


@dataclass(frozen=True, kw_only=True, slots=True)
class Interrupted:
    """A trial that was started and has no row: what was known of it, and what it died of."""

    key: str
    row: Mapping[str, Any]
    reason: str


class RunFolder:
    """``rows.jsonl`` and ``journal.jsonl`` in one folder, opened again by a run that goes on.

    A row carries its trial's key as ``trial``; a key with a row is never run again.
    """

    def __init__(self, folder: Path, *, boot: str | None = None) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._boot = boot_id() if boot is None else boot
        for path in (self.rows_path, self.journal_path):
            drop_torn_line(path)
        self._done = {row["trial"] for row in _lines(self.rows_path) if "trial" in row}

    @property
    def rows_path(self) -> Path:
        """One measured row a line."""
        return self.folder / "rows.jsonl"

    @property
    def journal_path(self) -> Path:
        """One event a line: a trial started."""
        return self.folder / "journal.jsonl"

    def done(self, key: str) -> bool:
        """Whether this trial has its row."""
        return key in self._done

    def rows(self) -> list[dict[str, Any]]:
        """Every row so far, the watchdog's included."""
        return _lines(self.rows_path)

    def row_of(self, key: str) -> dict[str, Any] | None:
        """The row of one trial."""
        return next((row for row in reversed(self.rows()) if row.get("trial") == key), None)

    def start(self, key: str, row: Mapping[str, Any]) -> None:
        """Say that a trial begins, with the row as far as it is known."""
        append_line(
            self.journal_path,
            {
                "event": "start",
                "trial": key,
                "boot": self._boot,
                "at": datetime.now(UTC).isoformat(timespec="seconds"),
                "row": {**row, "schema": SCHEMA, "trial": key},
            },
        )

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row."""
        append_line(self.rows_path, row)
        self._done.add(row["trial"])

    def take_note(self) -> None:
        """Look for rows that the watchdog wrote."""
        self._done.update(row["trial"] for row in self.rows() if "trial" in row)

    def interrupted(self) -> list[Interrupted]:
        """Trials that took the machine or the run with them, and so must not simply be tried again.

        One that was under way when the machine went down is blamed at once. One that was under way when
        only the run ended (Ctrl-C, a lost terminal) is tried once more, and blamed when that ended the
        same way.
        """
        starts = [event for event in _lines(self.journal_path) if event["event"] == "start"]
        times = Counter(event["trial"] for event in starts)
        last = {event["trial"]: event for event in starts}
        found = []
        for key, event in last.items():
            if self.done(key):
                continue
            if event["boot"] != self._boot:
                reason = f"the machine went down and came up again while this ran (started {event['at']})"
            elif times[key] >= _STARTS_BEFORE_BLAME:
                reason = f"the run ended {times[key]} times while this ran; cause unknown"
            else:
                continue
            found.append(Interrupted(key=key, row=event["row"], reason=reason))
        return found
