"""`make bench`: every benchmark in turn, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def main() -> int:
    """Run each script of this folder; non-zero when one fails."""
    status = 0
    for script in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        print(f"== {script.stem}", flush=True)
        status |= subprocess.run([sys.executable, str(script)], check=False).returncode
    return status


if __name__ == "__main__":
    sys.exit(main())
