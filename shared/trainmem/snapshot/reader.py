"""Opening a stranger's file: a process of its own reads it, this one only takes delivery of numbers and text."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from array import array
from collections.abc import Iterable
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

from trainmem.snapshot.child.wire import READ, decode
from trainmem.snapshot.limits import Limits, command_line_limits
from trainmem.snapshot.model import Annotation, EndBlocks, Frame, Segments, Snapshot, Source, Stacks, Trace
from trainmem.snapshot.paths import shorten_paths
from trainmem.snapshot.rejected import SnapshotRejected
from trainmem.snapshot.text import clean

__all__ = ["SnapshotRejected", "delivered", "read_snapshot"]

_START = (
    "import sys, types; package = types.ModuleType('child'); package.__path__ = [sys.argv.pop(1)]; "
    "sys.modules['child'] = package; from child.main import main; main()"
)
"""The package is put together by hand because -I keeps every folder but the standard library off the path."""

_FOLDER = str(Path(__file__).resolve().parent / "child")
_ANSWER_BYTES = 64_000_000
_ANSWER_BYTES_PER_INPUT_BYTE = 3
_PIPE_BYTES = 1 << 20
_TEXT_CHARACTERS = 2000
_TORN = "too large or malformed"


def read_snapshot(source: str | os.PathLike[str] | bytes, limits: Limits | None = None) -> Snapshot:
    """The snapshot in a file or in bytes. Raises `SnapshotRejected`; nothing in it is ever executed.

    A fresh process reads it under limits on memory, processor time, wall time and output. If that process
    dies, whatever the reason, the file is rejected and not tried again.
    """
    limits = limits or command_line_limits()
    if isinstance(source, bytes):
        with tempfile.TemporaryFile(buffering=0) as file:
            file.write(source)
            file.seek(0)
            return _read(file, "snapshot", limits)
    path = Path(source)
    try:
        with path.open("rb", buffering=0) as file:
            return _read(file, path.name, limits)
    except OSError as error:
        raise SnapshotRejected(
            f"{clean(path.name)}: {(error.strerror or 'cannot be read').lower()}"
        ) from None


def _read(file: BinaryIO | FileIO, name: str, limits: Limits) -> Snapshot:
    name = clean(name, most_characters=120)
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise SnapshotRejected(f"{name}: not an ordinary file")
    if status.st_size > limits.most_bytes:
        raise SnapshotRejected(
            f"{name}: {status.st_size / 1e6:,.0f} MB; at most {limits.most_bytes / 1e6:,.0f} MB can be "
            "opened here"
        )
    compressed = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    return delivered(_ask(file, name, status.st_size, compressed, limits), name)


def delivered(answer: bytes, name: str) -> Snapshot:
    """The snapshot in the process's answer, which is not trusted either. Raises `SnapshotRejected`."""
    try:
        kind, header, columns = decode(answer)
        if kind == READ:
            return _Delivery(header, columns).snapshot(name)
        reason = clean(str(header["reason"]))
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
        reason = _TORN
    raise SnapshotRejected(f"{name}: not opened: {reason}")


def _ask(file: BinaryIO | FileIO, name: str, size: int, compressed: bool, limits: Limits) -> bytes:
    """The process's whole answer, or an empty one when it did not end well in time."""
    bounds = json.dumps({"most_bytes": limits.most_bytes, "most_rows": limits.most_rows})
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-B", "-X", "utf8", "-c", _START, _FOLDER, bounds],
        stdin=file,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/" if os.name == "posix" else None,
        env={} if os.name == "posix" else None,
        start_new_session=True,
    ) as child:
        timer = threading.Timer(limits.deadline_seconds(size, compressed=compressed), _end, [child])
        timer.daemon = True
        timer.start()
        most = _ANSWER_BYTES + _ANSWER_BYTES_PER_INPUT_BYTE * (limits.most_bytes if compressed else size)
        try:
            assert child.stdout is not None
            parts: list[bytes] = []
            while most >= 0 and (part := os.read(child.stdout.fileno(), _PIPE_BYTES)):
                parts.append(part)
                most -= len(part)
            return b"".join(parts) if most >= 0 and child.wait() == 0 else b""
        finally:
            timer.cancel()
            _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the process and anything it might have started."""
    if child.poll() is not None:
        return
    try:
        if os.name == "posix":
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
    except (ProcessLookupError, PermissionError):
        child.kill()


class _Delivery:
    """The answer, checked once more: every number that points somewhere points inside."""

    def __init__(self, header: dict[str, Any], columns: list[array[int]]) -> None:
        self.header = header
        self.columns = columns
        self.strings = shorten_paths(
            [clean(str(text), most_characters=_TEXT_CHARACTERS) for text in header["strings"]]
        )

    def snapshot(self, name: str) -> Snapshot:
        header = self.header
        source = header["source"]
        stacks = self._stacks()
        segments = self._table(Segments, header["segments"], stacks)
        end_blocks = self._table(EndBlocks, header["blocks"], stacks)
        self._within(end_blocks.segment, len(segments))
        self._within(segments.pool, len(self.strings))
        return Snapshot(
            source=Source(
                name=name,
                format=clean(str(source["format"]), most_characters=20),
                gzip=bool(source["gzip"]),
                size_bytes=int(source["bytes"]),
            ),
            traces=tuple(self._trace(part, stacks) for part in header["traces"]),
            trace_lists=int(header["trace_lists"]),
            segments=segments,
            end_blocks=end_blocks,
            stacks=stacks,
            strings=self.strings,
            annotations=tuple(
                Annotation(bool(stage), self.strings[text], int(device), int(time_us))
                for stage, text, device, time_us in header["annotations"]
            ),
            settings=_clean_settings(header["settings"]),
            unknown_actions={clean(str(key)): int(count) for key, count in header["unknown_actions"].items()},
        )

    def _stacks(self) -> Stacks:
        parts = {key: self.columns[at] for key, at in self.header["frames"].items()}
        for key in ("name", "file"):
            self._within(parts[key], len(self.strings))
        frames = [
            Frame(self.strings[name], self.strings[file], line)
            for name, file, line in zip(parts["name"], parts["file"], parts["line"], strict=True)
        ]
        ends, numbers = (self.columns[self.header["stacks"][key]] for key in ("end", "frame"))
        self._within(numbers, len(frames))
        if any(map(int.__gt__, ends, ends[1:])) or (ends and ends[-1] != len(numbers)):
            raise ValueError("stacks")
        return Stacks(ends=ends, frame_numbers=numbers, frames=frames)

    def _trace(self, part: dict[str, Any], stacks: Stacks) -> Trace:
        columns = {key: self.columns[at] for key, at in part["columns"].items()}
        if len({len(values) for values in columns.values()}) != 1:
            raise ValueError("columns of different lengths")
        for key in ("stack", "forward_stack"):
            self._within(columns.get(key, ()), len(stacks))
        words = {key: columns[key] for key in ("user_metadata", "category") if key in columns}
        for values in words.values():
            self._within(values, len(self.strings))
        return Trace(
            device=int(part["device"]),
            kind="host" if part["kind"] == "host" else "device",
            action=columns["action"],
            address=columns["address"],
            size=columns["size"],
            time_us=columns["time_us"],
            stack=columns["stack"],
            forward_stack=columns.get("forward_stack"),
            words=words,
            device_free_bytes={int(event): int(free) for event, free in part["device_free_bytes"]},
        )

    def _table(self, kind: Any, part: dict[str, int], stacks: Stacks) -> Any:
        columns = {key: self.columns[at] for key, at in part.items()}
        if len({len(values) for values in columns.values()}) != 1:
            raise ValueError("columns of different lengths")
        self._within(columns["stack"], len(stacks))
        return kind(**columns)

    @staticmethod
    def _within(values: Iterable[int], end: int) -> None:
        if max(values, default=-1) >= end or min(values, default=0) < -1:
            raise ValueError("a number points outside its table")


def _clean_settings(settings: dict[str, Any]) -> dict[str, Any]:
    cleaned: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            value = _clean_settings(value)
        elif isinstance(value, str):
            value = clean(value)
        cleaned[clean(key)] = value
    return cleaned
