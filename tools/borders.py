"""Work out `borders.json` anew, a device after the other; with --check, only say whether it is up to date.

Two or three minutes: the allocator replays a few thousand jobs. `--device NAME` does one device alone.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import astuple
from pathlib import Path
from typing import Any

import trainmem
from trainmem.device import devices
from trainmem.fit.borders import Border, borders, models
from trainmem.fit.family import FAMILIES, ladder
from trainmem.fit.methods import METHODS
from trainmem.fit.published import FILE, PAGE, SCHEMA
from trainmem.fit.room import room
from trainmem.job import JobError, TrainingJob
from trainmem.model import resolve

PATH = Path(trainmem.__file__).parent / "fit" / FILE


def table(name: str) -> dict[str, Any]:
    """One device's part: for each method the largest model, `EXAMPLE` and the border on every family's curve."""
    at, like = room(name), PAGE.with_(device=name)
    names = [rung.name for rung in models(like.sequence_length)]
    rows: dict[str, Any] = {"limit_bytes": at.limit_bytes, "models": {}, "example": {}, "curves": {}}
    for curve in (found.key for found in FAMILIES if takes(found.key, like)):
        rows["curves"][curve] = {}
        for method in METHODS:
            found = borders(method, like, at, curve, "exact")
            rows["curves"][curve][method.key] = row(found.curve)
            count, *rest = row(found.models)
            rows["models"][method.key] = [names[count - 1] if count else None, *rest]
            if found.example is not None:
                rows["example"][method.key] = row(found.example)
    return rows


def row(border: Border) -> list[Any]:
    """A border as the file has it."""
    shown = [] if border.figures is None else [list(astuple(border.figures))]
    return [border.count, border.tight, *shown]


def takes(curve: str, like: TrainingJob) -> bool:
    """Whether a family's models have positions for this length."""
    try:
        for rung in ladder(curve).anchors:
            resolve(rung.job(like))
    except JobError:
        return False
    return True


def text_of(tables: dict[str, Any]) -> str:
    """The file: one line for every row of methods, so that a change is seen where it is."""

    def lines(value: Any, indent: str) -> str:
        if not isinstance(value, dict) or not any(isinstance(part, dict) for part in value.values()):
            return json.dumps(value)
        parts = (f"{indent} {json.dumps(key)}: {lines(part, indent + ' ')}" for key, part in value.items())
        return "{\n" + ",\n".join(parts) + f"\n{indent}}}"

    return lines({"schema": SCHEMA, "devices": tables}, "") + "\n"


def main() -> int:
    """Write the file, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--device", choices=[found.name for found in devices() if found.cuda])
    args = parser.parse_args()
    every = [found.name for found in devices() if found.cuda]
    known = json.loads(PATH.read_text(encoding="utf-8"))["devices"] if PATH.exists() else {}
    names = [args.device] if args.device else every
    stale = []
    for name in names:
        found = table(name)
        if json.loads(json.dumps(found)) != known.get(name):
            stale.append(name)
        known[name] = found
        sys.stderr.write(f"{name}: {'changed' if name in stale else 'the same'}\n")
    if args.check:
        return 1 if stale else 0
    PATH.write_text(text_of({name: known[name] for name in every if name in known}), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
