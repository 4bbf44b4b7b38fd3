"""The whole analysis in a process of its own, for a server that must stay quick and alive.

The server gets two strings: the answer as JSON and the report as HTML. ``python -m
trainmem.snapshot.service`` is the other side.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trainmem.snapshot.analysis import Analysis, analyse
from trainmem.snapshot.compare import Comparison, Profile, compare, profile_of_estimate
from trainmem.snapshot.document import document_of
from trainmem.snapshot.limits import WEB, Limits
from trainmem.snapshot.page import render_page
from trainmem.snapshot.reader import SnapshotRejected, read_snapshot
from trainmem.snapshot.text import clean

try:
    import resource
except ImportError:  # not a POSIX system
    resource = None  # type: ignore[assignment]

__all__ = ["Report", "report_in_process"]

_MOST_SECONDS = 120.0
_MOST_ANSWER_BYTES = 64_000_000
_MEMORY_BYTES = 4 << 30
_PACKAGES = str(Path(__file__).resolve().parents[2])


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """A snapshot, understood and drawn."""

    document: dict[str, Any]
    html: str


def report_in_process(
    file: str | os.PathLike[str],
    *,
    name: str | None = None,
    compare_with: str | os.PathLike[str] | None = None,
    compare_name: str | None = None,
    estimate: dict[str, Any] | None = None,
    limits: Limits = WEB,
) -> Report:
    """Read, analyse and draw. Raises `SnapshotRejected`, also when the process dies or takes too long.

    ``name`` is what the snapshot is called on the page; ``estimate`` a `trainmem.estimate/1` answer to
    compare with when there is no second file.
    """
    order = {
        "file": str(Path(file).resolve()),
        "name": name,
        "compare_with": str(Path(compare_with).resolve()) if compare_with else None,
        "compare_name": compare_name,
        "estimate": estimate,
        "limits": asdict(limits),
    }
    answer = _ask(json.dumps(order).encode())
    try:
        reply = json.loads(answer)
        if "reason" in reply:
            raise SnapshotRejected(str(reply["reason"]))
        return Report(document=reply["document"], html=str(reply["html"]))
    except (json.JSONDecodeError, KeyError, TypeError):
        raise SnapshotRejected(f"{name or Path(file).name}: not opened: too large or malformed") from None


def _ask(order: bytes) -> bytes:
    """The reply of a fresh process, or nothing when it did not end well in time."""
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
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(order)
            process.stdin.close()
            answer = process.stdout.read(_MOST_ANSWER_BYTES)
            whole = not process.stdout.read(1)
            return answer if whole and process.wait() == 0 else b""
        except BrokenPipeError:
            return b""
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


def _renamed(analysis: Analysis, name: str | None) -> Analysis:
    if not name:
        return analysis
    source = replace(analysis.snapshot.source, name=clean(name, most_characters=120))
    return replace(analysis, snapshot=replace(analysis.snapshot, source=source))


def _serve(order: dict[str, Any]) -> dict[str, Any]:
    limits = Limits(**order["limits"])
    analysis = _renamed(analyse(read_snapshot(order["file"], limits)), order["name"])
    before: Analysis | Profile | None = None
    comparison: Comparison | None = None
    if order["compare_with"]:
        before = _renamed(analyse(read_snapshot(order["compare_with"], limits)), order["compare_name"])
    elif order["estimate"]:
        before = profile_of_estimate(order["estimate"], "predicted by the Calculator")
    if before is not None:
        comparison = compare(before, analysis)
    html = render_page(
        analysis, comparison=comparison, before=before if isinstance(before, Analysis) else None
    )
    return {"document": document_of(analysis), "html": html}


def main() -> int:
    """One order on standard input, one reply on standard output."""
    _confine()
    try:
        reply = _serve(json.loads(sys.stdin.buffer.read()))
    except (SnapshotRejected, ValueError) as error:
        reply = {"reason": str(error)}
    except MemoryError:
        reply = {"reason": "not opened: it needs more memory to understand than is allowed here"}
    sys.stdout.buffer.write(json.dumps(reply).encode("ascii"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
