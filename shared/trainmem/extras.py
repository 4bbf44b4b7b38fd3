"""What a part of trainmem needs that a plain installation lacks, and how to get it."""

from __future__ import annotations

from importlib.util import find_spec

from trainmem.job import JobError

__all__ = ["install_line", "is_installed", "require_backend"]

_OF_THE_BACKEND = ("torch", "transformers")


def install_line(missing: str, extra: str = "backend") -> str:
    """``"needs torch, which is not installed; pip install '.[backend]' brings it"``."""
    return f"needs {missing}, which is not installed; pip install '.[{extra}]' brings it"


def require_backend(what: str) -> None:
    """Raise `JobError`, one line that begins with ``what``, where torch or transformers is missing."""
    for name in _OF_THE_BACKEND:
        if not is_installed(name):
            raise JobError(f"{what} {install_line(name)}")


def is_installed(library: str) -> bool:
    """Whether ``library`` can be imported, without importing it."""
    try:
        return find_spec(library) is not None
    except ImportError:
        return False
