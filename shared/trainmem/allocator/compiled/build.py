"""Builds the allocator's machine code where there is a C compiler.

Usage: python -m trainmem.allocator.compiled.build
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys

from trainmem.allocator.compiled.library import LIBRARY, SOURCES, fingerprint

__all__ = ["build"]

_COMPILERS = ("cc", "gcc", "clang")


def build() -> str | None:
    """Writes the library beside its sources; None when that went well, else why it did not."""
    named = os.environ.get("CC")
    compiler = (
        shlex.split(named) if named else [found for found in map(shutil.which, _COMPILERS) if found][:1]
    )
    if not compiler:
        return f"no C compiler among {', '.join(_COMPILERS)}"
    # Another process may be using the library that is there: the new one takes its name when it is whole.
    made = LIBRARY.with_suffix(f".{os.getpid()}")
    sources = [str(path) for path in SOURCES if path.suffix == ".c"]
    command = [*compiler, "-O2", "-std=c11", "-shared", "-fPIC", f"-DTRAINMEM_FINGERPRINT={fingerprint()}u"]
    try:
        done = subprocess.run([*command, *sources, "-o", str(made)], capture_output=True, text=True)
    except OSError as error:
        return f"{compiler[0]}: {error.strerror}"
    if done.returncode:
        made.unlink(missing_ok=True)
        return (done.stderr.strip().splitlines() or ["it failed without a word"])[0]
    made.replace(LIBRARY)
    return None


if __name__ == "__main__":
    trouble = build()
    if trouble is not None:
        sys.exit(f"the allocator stays Python: {trouble}")
