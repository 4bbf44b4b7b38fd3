"""The whole analysis in a process of its own, for a server that must stay quick and alive.

The server sends an order and gets reports, summaries and pages back as JSON. The other side is
``python -m trainmem.snapshot.service``; it reads files through `trainmem.snapshot.reader`, in yet another process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trainmem.snapshot.analysis import Analysis, analyse
from trainmem.snapshot.limits import WEB, Limits
from trainmem.snapshot.page import render_page
from trainmem.snapshot.reader import SnapshotRejected, read_snapshot
from trainmem.snapshot.summary import Summary, summary_of
from trainmem.snapshot.text import clean
from trainmem.snapshot.verdict import verdict_of

try:
    import resource
except ImportError:  # not a POSIX system
    resource = None  # type: ignore[assignment]

__all__ = ["STAGES", "Report", "report_in_process"]

STAGES = ("reading", "understanding", "drawing")
"""What the process says it is doing, in order."""

_MOST_SECONDS = 120.0
_MOST_LINE_BYTES = 64_000_000
_MEMORY_BYTES = 4 << 30
_PACKAGES = str(Path(__file__).resolve().parents[2])


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """A snapshot, understood and drawn."""

    verdict: tuple[str, ...]
    page: str
    summary: Summary | None
    """``None`` when there is nothing to compare."""


def report_in_process(
    file: str | os.PathLike[str],
    *,
    name: str | None = None,
    limits: Limits = WEB,
    progress: Callable[[str], None] = lambda stage: None,
) -> Report:
    """Read, analyse and draw. Raises `SnapshotRejected`, also when the process dies or takes too long.

    ``name`` is what the snapshot is called on the page; ``progress`` is called with each of `STAGES`.
    """
    order = {"file": str(Path(file).resolve()), "name": name, "limits": asdict(limits)}
    reply = _ask(json.dumps(order).encode(), progress)
    try:
        if "reason" in reply:
            raise SnapshotRejected(str(reply["reason"]))
        summary = reply["summary"]
        return Report(
            verdict=tuple(map(str, reply["verdict"])),
            page=str(reply["page"]),
            summary=Summary.from_json(summary) if summary else None,
        )
    except (KeyError, TypeError):
        shown = clean(name or Path(file).name, most_characters=120)
        raise SnapshotRejected(f"{shown}: not opened: too large or malformed") from None


def _ask(order: bytes, progress: Callable[[str], None]) -> dict[str, Any]:
    """The reply of a fresh process, or an empty one when it did not end well in time."""
    environment = {"PYTHONPATH": _PACKAGES, "PATH": os.defpath}
    with subprocess.Popen(
        [sys.executable, "-P", "-B", "-m", "trainmem.snapshot.service"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/" if os.name == "posix" else None,
        env=environment if os.name == "posix" else None,
        start_new_session=True,
    ) as process:
        timer = threading.Timer(_MOST_SECONDS, _end, [process])
        timer.daemon = True
        timer.start()
        reply: dict[str, Any] = {}
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(order)
            process.stdin.close()
            while line := process.stdout.readline(_MOST_LINE_BYTES):
                message = json.loads(line)
                if message.get("stage") in STAGES:
                    progress(message["stage"])
                else:
                    reply = message
            return reply if process.wait() == 0 else {}
        except (BrokenPipeError, ValueError, AttributeError):
            return {}
        finally:
            timer.cancel()
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    try:
        if os.name == "posix":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    except (ProcessLookupError, PermissionError):
        process.kill()


def _confine() -> None:
    if resource is None:
        return
    for kind, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_AS, _MEMORY_BYTES)):
        _, hard = resource.getrlimit(kind)
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)
        try:
            resource.setrlimit(kind, (most, most))
        except (ValueError, OSError):
            continue


def _say(message: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(message).encode("ascii") + b"\n")
    sys.stdout.buffer.flush()


def _named(analysis: Analysis, name: str | None) -> Analysis:
    if not name:
        return analysis
    source = replace(analysis.snapshot.source, name=clean(name, most_characters=120))
    return replace(analysis, snapshot=replace(analysis.snapshot, source=source))


def _serve(order: dict[str, Any]) -> dict[str, Any]:
    _say({"stage": "reading"})
    snapshot = read_snapshot(order["file"], Limits(**order["limits"]))
    _say({"stage": "understanding"})
    analysis = _named(analyse(snapshot), order["name"])
    _say({"stage": "drawing"})
    can_compare = any(device.trace.kind == "device" for device in analysis.devices)
    return {
        "verdict": verdict_of(analysis),
        "page": render_page(analysis),
        "summary": summary_of(analysis).to_json() if can_compare else None,
    }


def main() -> int:
    """One order on standard input; stages, then one reply, on standard output."""
    _confine()
    try:
        reply = _serve(json.loads(sys.stdin.buffer.read()))
    except SnapshotRejected as error:
        reply = {"reason": str(error)}
    except MemoryError:
        reply = {"reason": "not opened: it needs more memory to understand than is allowed here"}
    _say(reply)
    return 0


if __name__ == "__main__":
    sys.exit(main())
