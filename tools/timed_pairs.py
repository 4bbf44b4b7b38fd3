"""Work out `timed_pairs.json` anew, after rows with times were published; with --check, only compare."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

import trainmem
from trainmem.fit.timed_pairs import FILE, SCHEMA, found_pairs
from trainmem.levers import ALL_LEVERS

PATH = Path(trainmem.__file__).parent / "fit" / FILE


def text() -> str:
    """The file: one line for every pair, so that a change is seen where it is."""
    levers = []
    for lever in ALL_LEVERS:
        pairs = [f"   {json.dumps(asdict(pair))}" for pair in found_pairs(lever.key)]
        if pairs:
            levers.append(f"  {json.dumps(lever.key)}: [\n" + ",\n".join(pairs) + "\n  ]")
    return f'{{\n "schema": {json.dumps(SCHEMA)},\n "levers": {{\n' + ",\n".join(levers) + "\n }\n}\n"


def main() -> int:
    """Write the file, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    found = text()
    if parser.parse_args().check:
        return int(not PATH.exists() or PATH.read_text(encoding="utf-8") != found)
    PATH.write_text(found, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
